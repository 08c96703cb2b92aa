"""Statistics of the ids in a sample of a dataset: the file of ``embark data stats``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from embark_jax._base.config import Config, ConfigError
from embark_jax._base.validation import validated
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.statistics.histogram import Histogram

VERSION = 2
NOT_OURS = "not statistics of `embark data stats`"


@dataclasses.dataclass(frozen=True)
class FeatureAccess:
    """Accesses by the bags of one feature.

    Attributes:
      mean_hotness, max_hotness: mean and largest number of ids in a bag, without
        padding.
      ids_seen: number of unique ids.
    """

    mean_hotness: NonNegativeFloat
    max_hotness: NonNegativeInt
    ids_seen: NonNegativeInt


@dataclasses.dataclass(frozen=True)
class TableAccess:
    """Accesses of one table of ``rows`` rows, by all its features.

    Attributes:
      rows: rows of the table.
      histogram: histogram of its accesses.
    """

    rows: PositiveInt
    histogram: Histogram

    def __post_init__(self):
        """Raises ``ValueError`` if so many rows cannot have such a histogram."""
        histogram = self.histogram
        counts = [accesses for _, accesses in histogram.hottest]
        if not (
            histogram.rows_seen <= self.rows
            and all(row < self.rows for row, _ in histogram.hottest)
            and len(counts) <= histogram.rows_seen
            and sum(counts) <= histogram.accesses
            and all(rows <= accesses for rows, accesses in histogram.bins)
        ):
            raise ValueError(
                f"{histogram.rows_seen} rows seen {histogram.accesses} times, the "
                f"{len(counts)} hottest of them {sum(counts)} times, cannot be of "
                f"{self.rows} rows"
            )

    @property
    def zipf_exponent(self) -> float:
        return self.histogram.zipf_exponent(self.rows)


@dataclasses.dataclass(frozen=True, eq=False)
class Statistics:
    """Accesses in a sample of the data, by feature and by table.

    Attributes:
      samples: number of samples read.
      features, tables: accesses by name.
      rarest: ``(accesses, samples)`` of the samples of one half, by how often the other
        half saw the rarest of their rows; columns are correlated, so that this is not
        known from the tables one by one.
    """

    samples: int = 0
    features: Mapping[str, FeatureAccess] = dataclasses.field(default_factory=dict)
    tables: Mapping[str, TableAccess] = dataclasses.field(default_factory=dict)
    rarest: tuple[tuple[int, int], ...] = ()

    def all_hot_share(self, accesses: float) -> float:
        """Returns the share of samples whose rows all have at least these accesses in
        the whole sample, as FAE counts them (https://arxiv.org/abs/2103.00686)."""
        hot = sum(samples for seen, samples in self.rarest if 2 * seen >= accesses)
        return hot / max(1, sum(samples for _, samples in self.rarest))

    def skew(self, table: TableSpec) -> Histogram | None:
        """Returns the histogram of a table's accesses; None if the sample lacks the
        table."""
        table_access = self.tables.get(table.name)
        return (
            table_access.histogram
            if table_access and table_access.histogram.accesses
            else None
        )

    def mean_hotness(self, feature: FeatureSpec) -> float:
        """Returns the mean ids a bag; hotness, if the sample lacks the feature."""
        feature_access = self.features.get(feature.name)
        return feature_access.mean_hotness if feature_access else float(feature.hotness)

    def problems(
        self, tables: Sequence[TableSpec], features: Sequence[FeatureSpec]
    ) -> list[str]:
        """Says why the statistics cannot be of this model, if they cannot."""
        rows = {table.name: table.rows for table in tables}
        hotness = {feature.name: feature.hotness for feature in features}
        problems = [
            f"statistics: {kind} {name!r} is not in the model"
            for kind, accesses, spec_names in (
                ("table", self.tables, rows),
                ("feature", self.features, hotness),
            )
            for name in accesses
            if name not in spec_names
        ]
        problems += [
            f"statistics: table {name!r} has {access.rows} rows, the model's "
            f"{rows[name]}"
            for name, access in self.tables.items()
            if access.rows != rows.get(name, access.rows)
        ]
        problems += [
            f"statistics: feature {name!r} has bags of {access.max_hotness} ids, the "
            f"model's hold {hotness[name]} at most"
            for name, access in self.features.items()
            if access.max_hotness > hotness.get(name, access.max_hotness)
        ]
        return problems

    def to_json(self) -> str:
        """Returns the statistics as JSON; ``from_json`` is the inverse."""
        return json.dumps({"version": VERSION, **dataclasses.asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> Statistics:
        """Reads the output of ``to_json``.

        Raises:
          ConfigError: if it is invalid; the message names every problem.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{NOT_OURS}: {error}") from None
        file = validated(_File, data, (), NOT_OURS)
        return cls(file.samples, file.features, file.tables, file.rarest)


NO_STATISTICS = Statistics()


class _File(Config):
    version: Literal[2]
    samples: NonNegativeInt
    features: dict[str, FeatureAccess]
    tables: dict[str, TableAccess]
    rarest: tuple[tuple[NonNegativeInt, PositiveInt], ...] = ()
