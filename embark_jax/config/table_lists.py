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
from collections.abc import Iterator
from operator import gt
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field, NonNegativeFloat

from embark_jax._base import yaml_text
from embark_jax._base.config import (
    Config,
    ConfigError,
    config_error_at,
)
from embark_jax._base.validation import validated
from embark_jax.config.embedding import EmbeddingConfig, TableConfig
from embark_jax.plans.options import (
    DENSE_OPTIMIZERS,
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


class ListedTable(TableConfig):
    """``count`` equal tables, each read by one feature per hotness, of equal pooling.
    With pooling "none" the hotness is the longest sequence. ``mean_hotness`` is one
    number of ids a bag for each hotness; without it, bags are full. All other keys are
    those of a table in a config; a dynamic one has ``expected_keys`` and, without
    ``max_slots``, slots for all of them.

    Bags are averaged, not summed, unless the list says so: a sum of 200 rows of a small
    table is too large to train from; lookups and exchanges stay the same.

    Tables without a name are called after their position: t0, t1, …; with a name and a
    count, a number is added to the name.
    """

    hotness: Count | Annotated[tuple[Count, ...], Field(min_length=1)] = 1
    mean_hotness: NonNegativeFloat | tuple[NonNegativeFloat, ...] | None = None
    pooling: Pooling = "mean"
    count: Count = 1
    name: Annotated[str, Field(strict=True, min_length=1)] | None = None

    @pydantic.model_validator(mode="after")
    def _check(self) -> ListedTable:
        if self.rows is None and self.expected_keys is None:
            raise ValueError("has no rows; a dynamic table has expected_keys instead")
        if self.dim is None:
            raise ValueError("has no dim, which must be set")
        longest, means = _each(self.hotness), _each(self.mean_hotness)
        if means and (len(means) != len(longest) or any(map(gt, means, longest))):
            raise ValueError(
                f"mean_hotness {self.mean_hotness}: must have a number for each "
                f"hotness of {self.hotness}, and none above it"
            )
        return self

    def table(self) -> dict[str, Any]:
        """Returns the section of a config for one of the tables."""
        table = {key: getattr(self, key) for key in TableConfig.model_fields}
        if self.rows is None:
            *_, keys = _each(self.expected_keys)
            table |= {"rows": keys, "max_slots": self.max_slots or keys}
        return table

    def features(self, name: str) -> dict[str, dict[str, Any]]:
        """Returns the sections of the features of one of the tables."""
        longest = _each(self.hotness)
        names = [f"{name}_{k}" for k in range(len(longest))]
        if isinstance(self.hotness, int):
            names = [name]
        means = _each(self.mean_hotness) or [None] * len(longest)
        return {
            feature: {
                "table": name,
                "hotness": hotness,
                "mean_hotness": mean,
                "pooling": self.pooling,
            }
            for feature, hotness, mean in zip(names, longest, means, strict=True)
        }


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

    def embedding(self) -> dict[str, Any]:
        """Returns the section of a config for the tables.

        Raises:
          ValueError: if two tables have one name.
        """
        tables, features = {}, {}
        for name, listed in self._named():
            if name in tables:
                raise ValueError(f"table name {name!r} is used 2 times, must be unique")
            tables[name] = listed.table()
            features |= listed.features(name)
        optimizer = {"kind": self.optimizer or "rowwise_adagrad"}
        return {"tables": tables, "features": features, "optimizer": optimizer}

    def specs(self) -> tuple[list[TableSpec], list[FeatureSpec]]:
        """Returns tables and features, spelled out."""
        embedding = EmbeddingConfig.model_validate(self.embedding())
        rows, features = embedding.declared("a table list has them")
        return [embedding.table(name, n) for name, n in rows.items()], [*features]

    def _named(self) -> Iterator[tuple[str, ListedTable]]:
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
    say otherwise. Without dense layers there is no model: the tables can be planned,
    and trained once one is chosen.
    """
    embedding, dense = listed.embedding(), listed.dense
    data: dict[str, Any] = {"kind": "synthetic"}
    data["zipf_exponent"] = listed.zipf_exponent or 0.0
    if dense is not None:
        data["dense_features"] = dense.features
    return {
        "data": data,
        "model": {"kind": "none"} if dense is None else _model(dense),
        "embedding": embedding,
        "dense_optimizer": {"kind": dense_optimizer_of(embedding["optimizer"]["kind"])},
        "train": {"batch_size": listed.batch or DEFAULT_BATCH},
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
