"""Table lists: short configs of a model on synthetic data.

A list is YAML or JSON: either the bare list of tables, or a mapping with the list under
``tables`` and with other properties of the model::

    name: example
    zipf_exponent: 1.1
    tables:
      - {count: 40, rows: 4_000_000, dim: 64, hotness: 200}
      - {name: genre, rows: 20, dim: 16, hotness: [1, 10]}  # read by two features

``configs/models/`` holds the lists of published models. What commands read of a list
is the experiment config that it stands for (``experiment_of``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
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

Count = Annotated[int, Field(strict=True, ge=1)]
Width = Annotated[int, Field(strict=True, ge=1, le=MOST_DIM)]
MOST_TABLES, MOST_LAYERS = 100_000, 1000
DEFAULT_BATCH = 65_536
"""Samples of a step of a list that does not say how many."""
ITEM = "table list"
_OF_CONFIGS = {f.name for t in (TableSpec, ForcedPlacement) for f in fields(t)}
_OF_CONFIGS -= {"discard"}  # a config's evicted
"""Keys of a table in a config, some of which a list lacks."""
MODELS = Path(__file__).parents[1] / "config_files" / "models"
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

    @property
    def kind(self) -> str:
        """The kind of model that has these layers."""
        return "dlrm" if self.interaction == "dot" else "dlrm_dcnv2"


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
        named = [*self.named()]
        features = [
            feature for name, each in named for feature, _ in each.features(name)
        ]
        return [each.spec(name) for name, each in named], features

    def named(self) -> Iterator[tuple[str, ListedTable]]:
        """Yields each table's name and entry."""
        place = 0
        for listed in self.tables:
            for number in range(listed.count):
                suffix = f"{number}" if listed.count > 1 else ""
                yield f"{listed.name}{suffix}" if listed.name else f"t{place}", listed
                place += 1


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


def experiment_of(listed: TableList) -> dict[str, Any]:
    """Returns the mapping that an experiment config with this model would be.

    The data are synthetic: 65,536 samples a step and uniform ids, if the list does not
    say otherwise. Bags are averaged, not summed: a sum of 200 rows of a small table is
    too large to train from; lookups and exchanges stay the same. Without dense layers
    there is no model: the tables can be planned, and trained once one is chosen.
    """
    tables, _ = listed.specs()
    data: dict[str, Any] = {"kind": "synthetic"}
    data["zipf_exponent"] = listed.zipf_exponent or 0.0
    if listed.dense is not None:
        data["dense_features"] = listed.dense.features
    optimizer = listed.optimizer or "rowwise_adagrad"
    return {
        "data": data,
        "model": _model(listed.dense) if listed.dense else {"kind": "none"},
        "embedding": {
            "tables": {table.name: _table(table) for table in tables},
            "features": {
                feature.name: {
                    "table": feature.table,
                    "hotness": feature.hotness,
                    "pooling": "none" if feature.sequence else "mean",
                    "mean_hotness": mean if mean < feature.hotness else None,
                }
                for name, each in listed.named()
                for feature, mean in each.features(name)
            },
            "optimizer": {"kind": optimizer},
        },
        "dense_optimizer": {"kind": dense_optimizer_of(optimizer)},
        "train": {"batch_size": listed.batch or DEFAULT_BATCH},
    }


def _table(table: TableSpec) -> dict[str, Any]:
    if not table.is_dynamic:
        return {"rows": table.rows, "dim": table.dim}
    return {
        "rows": table.expected_keys,
        "dim": table.dim,
        "slots": table.slots,
        "max_slots": table.max_slots,
        "evicted": "discard" if table.discard else table.tier,
        "expected_keys": table.expected_keys,
    }


def _model(dense: DenseNet) -> dict[str, Any]:
    stacks: dict[str, Any] = {"compute_dtype": "bfloat16"}
    stacks |= {"bottom": list(dense.bottom), "top": list(dense.top)}
    if dense.kind == "dlrm":
        return {"kind": dense.kind, **stacks}
    cross = {"cross_layers": dense.cross_layers}
    if dense.cross_layers:
        cross["cross_rank"] = dense.cross_rank
    return {"kind": dense.kind, **stacks, **cross}
