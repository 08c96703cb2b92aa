"""Table lists: the lookups of a model, without data or code to train it.

A list is YAML or JSON: either the bare list of tables, or a mapping with the list under
``tables`` and with other properties of the model::

    name: example
    zipf_exponent: 1.1
    tables:
      - {count: 40, rows: 4_000_000, dim: 64, hotness: 200}
      - {name: genre, rows: 20, dim: 16, hotness: [1, 10]}  # read by two features

``configs/models/`` holds the lists of published models.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from operator import gt
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field, NonNegativeFloat

from embark_jax._base import yaml_text
from embark_jax._base.config import (
    Config,
    ConfigError,
    config_error_at,
    nearest,
    read_text,
)
from embark_jax._base.validation import validated
from embark_jax.planner.request.dense import (
    NO_DENSE,
    DenseNetwork,
    network_of,
)
from embark_jax.planner.request.workload import (
    STATE_VALUES,
    Workload,
)
from embark_jax.plans.fleet import Fleet
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.options import (
    DENSE_OPTIMIZERS,
    Evicted,
    Pooling,
    RowOptimizerName,
)
from embark_jax.plans.tables import (
    MOST_DIM,
    FeatureSpec,
    TableSpec,
    check_model,
)
from embark_jax.statistics.accesses import NO_STATISTICS, FeatureAccess, Statistics

Count = Annotated[int, Field(strict=True, ge=1)]
Width = Annotated[int, Field(strict=True, ge=1, le=MOST_DIM)]
MOST_TABLES, MOST_LAYERS = 100_000, 1000
ITEM = "table list"
_OF_CONFIGS = {f.name for t in (TableSpec, ForcedPlacement) for f in fields(t)}
_OF_CONFIGS -= {"discard"}  # a config's evicted
"""Keys of a table in a config, some of which a list lacks."""
MODELS = Path(__file__).parents[2] / "config_files" / "models"
"""``configs/models``, through a link that a built package has as a folder."""


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

    @pydantic.model_validator(mode="before")
    @classmethod
    def _has_own_keys(cls, given: Any) -> Any:
        keys = _OF_CONFIGS - cls.model_fields.keys()
        for key in sorted(keys & set(given if isinstance(given, Mapping) else ())):
            name = given.get("name", "NAME")
            raise ValueError(
                f"{key} is no key of a list: leave it out, and give it beside the "
                f"list, as embedding.tables.{name}.{key}={given[key]}"
            )
        return given

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

    @pydantic.model_validator(mode="after")
    def _check_means(self) -> ListedTable:
        longest, means = _each(self.hotness), _each(self.mean_hotness)
        if means and (len(means) != len(longest) or any(map(gt, means, longest))):
            raise ValueError(
                f"mean_hotness {self.mean_hotness}: must have a number for each "
                f"hotness of {self.hotness}, and none above it"
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

    def features(self, name: str) -> list[tuple[FeatureSpec, float]]:
        """Returns the features of one of the tables, with the mean ids of a bag."""
        longest = _each(self.hotness)
        names = [f"{name}_{k}" for k in range(len(longest))]
        if isinstance(self.hotness, int):
            names = [name]
        return [
            (FeatureSpec(feature, name, hotness, self.pooling), mean)
            for feature, hotness, mean in zip(
                names, longest, _each(self.mean_hotness) or longest, strict=True
            )
        ]


def _each(value: float | tuple[float, ...] | None) -> tuple[Any, ...]:
    """Returns the values of one or several features; none for None."""
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


class DenseNet(Config):
    """The dense layers. Their input is the pooled rows side by side, with the output of
    the ``bottom`` MLP on the dense features, if there are any, or, without a bottom,
    with these features.
    With ``interaction`` "dot" it is that output with the dot products of all pairs
    (DLRM)."""

    features: Annotated[int, Field(strict=True, ge=0, le=MOST_DIM)] = 0
    bottom: tuple[Width, ...] = ()
    top: tuple[Width, ...] = (1,)
    cross_layers: Annotated[int, Field(strict=True, ge=0, le=MOST_LAYERS)] = 0
    cross_rank: Annotated[int, Field(strict=True, ge=0, le=MOST_DIM)] = 0
    interaction: Literal["concatenate", "dot"] = "concatenate"
    pool_stride: Count = 1
    """Number of neighbouring columns of the pooled rows that are averaged into one."""

    @property
    def kind(self) -> str:
        """The kind of model that has these layers."""
        return "dlrm" if self.interaction == "dot" else "dlrm_dcnv2"

    def network(
        self, tables: Sequence[TableSpec], features: Sequence[FeatureSpec]
    ) -> DenseNetwork:
        """Returns the layers, on top of these tables."""
        made = network_of(self, tables, features, self.features, self.pool_stride)
        assert made is not None
        return made


class TableList(Config):
    """Tables, and the conditions under which the model that reads them was measured.

    ``None`` means that the list does not say.
    """

    tables: Annotated[tuple[ListedTable, ...], Field(min_length=1)]
    name: str | None = None
    batch: Count | None = None
    zipf_exponent: NonNegativeFloat | None = None
    optimizer: RowOptimizerName | None = None
    dense: DenseNet | None = None

    def specs(self) -> tuple[list[TableSpec], list[FeatureSpec]]:
        """Returns tables and features, spelled out."""
        named = [*self._named()]
        features = [
            feature for name, each in named for feature, _ in each.features(name)
        ]
        return [each.spec(name) for name, each in named], features

    def statistics(self) -> Statistics:
        """Returns what the list says of the lengths of bags."""
        accesses = {
            feature.name: FeatureAccess(mean, feature.hotness, ids_seen=0)
            for name, each in self._named()
            for feature, mean in each.features(name)
            if mean < feature.hotness
        }
        return Statistics(features=accesses) if accesses else NO_STATISTICS

    def _named(self) -> Iterator[tuple[str, ListedTable]]:
        """Yields each table's name and entry."""
        place = 0
        for listed in self.tables:
            for number in range(listed.count):
                suffix = f"{number}" if listed.count > 1 else ""
                yield f"{listed.name}{suffix}" if listed.name else f"t{place}", listed
                place += 1

    def workload(
        self, fleet: Fleet, batch: int | None = None, **changes: Any
    ) -> Workload:
        """Returns the workload on a fleet, with changes of its fields. The defaults are
        65,536 samples a step, uniform ids, row-wise Adagrad, and on GPUs routes that
        hide. The dense layers take the optimizer of the rows."""
        tables, features = self.specs()
        optimizer = changes.get("optimizer", self.optimizer or "rowwise_adagrad")
        dense = NO_DENSE
        if self.dense is not None:
            network = self.dense.network(tables, features)
            dense = network.load(STATE_VALUES[dense_optimizer_of(optimizer)][0])
        fields = {
            "batch_size": self.batch or 65_536 if batch is None else batch,
            "zipf_exponent": self.zipf_exponent or 0.0,
            "optimizer": optimizer,
            "statistics": self.statistics(),
            "dense": dense,
            "overlap": not fleet.shared,
            "sample_ids": sum(feature.hotness for feature in features),
        }
        return Workload(fleet, **fields | changes)


def dense_optimizer_of(optimizer: str) -> str:
    """Returns the dense layers' optimizer that goes with that of the rows: Adagrad if
    there is none of the same name."""
    name = optimizer.removeprefix("rowwise_")
    return name if name in DENSE_OPTIMIZERS else "adagrad"


def load_table_list(source: str | Path) -> TableList:
    """Reads a table list from a file, or that of a published model by its name.

    Args:
      source: a path, or a name in ``configs/models`` such as "t180".

    Raises:
      ConfigError: if it is invalid; the message has the path and every problem.
    """
    path = Path(source)
    shipped = {path.stem: path for path in MODELS.glob("*.yaml")}
    if not path.exists():
        if str(source) not in shipped:
            raise ConfigError(
                f"{source}: no such file, and no published model; "
                + nearest(path.stem, shipped)
            )
        path = shipped[str(source)]
    text = read_text(path)
    try:
        return read_table_list(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def read_table_list(text: str) -> TableList:
    """Reads a table list.

    Raises:
      ConfigError: if it is invalid; the message names the entries and every problem.
    """
    try:
        data = json.loads(text)  # YAML does not include all of JSON, such as tabs
    except (ValueError, RecursionError):
        try:
            data = yaml_text.parse(text)
        except ConfigError as error:
            raise ConfigError(f"{ITEM}, {error}") from None
    if isinstance(data, list):
        data = {"tables": data}
    if not isinstance(data, dict):
        raise ConfigError(
            f"{ITEM}: must be a list of tables or a mapping with tables, is {data!r}"
        )
    listed = validated(TableList, data, (), ITEM)
    with config_error_at(ITEM):
        number = sum(table.count for table in listed.tables)
        if number > MOST_TABLES:
            raise ValueError(f"has more than {MOST_TABLES:,} tables")
        check_model(*listed.specs())
    return listed
