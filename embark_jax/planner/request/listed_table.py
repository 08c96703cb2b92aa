"""An entry of a table list: tables that are alike, and the features that read them."""

from __future__ import annotations

import operator
from typing import Annotated

import pydantic
from pydantic import Field, NonNegativeFloat

from embark_jax._base.config import Config
from embark_jax.plans.options import Evicted, Pooling
from embark_jax.plans.tables import TableSpec

Count = Annotated[int, Field(strict=True, ge=1)]


class ListedTable(Config):
    """``count`` equal tables, each read by one feature per hotness, of equal pooling.
    With pooling "none" the hotness is the longest sequence. ``mean_hotness`` is one
    number of ids a bag for each hotness; without it, bags are full.

    Tables with ``expected_keys`` are dynamic: they have this many different keys at the
    end, or ``[at the first steps, at the end]``, slots for all of them, or up to
    ``max_slots``, and rows that leave in ``evicted``. Others have ``rows``.

    Tables without a name are called after their position: t0, t1, …; with a name and a
    count, a number is added to the name.
    """

    rows: Count | None = None
    dim: Count
    expected_keys: Count | tuple[Count, Count] | None = None
    max_slots: Count | None = None
    evicted: Evicted = "host"
    hotness: Count | Annotated[tuple[Count, ...], Field(min_length=1)] = 1
    mean_hotness: NonNegativeFloat | tuple[NonNegativeFloat, ...] | None = None
    pooling: Pooling = "sum"
    count: Count = 1
    name: Annotated[str, Field(strict=True, min_length=1)] | None = None

    @pydantic.model_validator(mode="after")
    def _has_rows(self) -> ListedTable:
        if self.rows is None and self.expected_keys is None:
            raise ValueError("has no rows; a dynamic table has expected_keys instead")
        of_dynamic = self.model_fields_set & {"expected_keys", "max_slots", "evicted"}
        if self.rows is not None and of_dynamic:
            raise ValueError(
                f"has rows and {min(of_dynamic)}, which is for dynamic tables; leave "
                "one of them out"
            )
        return self

    def spec(self, name: str) -> TableSpec:
        """Returns one of the tables."""
        if self.rows is not None:
            return TableSpec(name, self.rows, self.dim)
        keys = self.expected_keys
        assert keys is not None
        max_slots = self.max_slots or (keys if isinstance(keys, int) else keys[1])
        return TableSpec.dynamic(
            name, self.dim, None, max_slots, evicted=self.evicted, expected_keys=keys
        )

    @pydantic.model_validator(mode="after")
    def _check_means(self):
        longest, means = self.hotness_by_feature, self.mean_by_feature
        if len(means) != len(longest) or any(map(operator.gt, means, longest)):
            raise ValueError(
                f"mean_hotness {self.mean_hotness}: must have a number for each "
                f"hotness of {self.hotness}, and none above it"
            )
        return self

    @property
    def hotness_by_feature(self) -> tuple[int, ...]:
        """Hotness of each feature."""
        return self.hotness if isinstance(self.hotness, tuple) else (self.hotness,)

    @property
    def mean_by_feature(self) -> tuple[float, ...]:
        """Mean ids of a bag of each feature."""
        if self.mean_hotness is None:
            return self.hotness_by_feature
        mean = self.mean_hotness
        return mean if isinstance(mean, tuple) else (mean,)
