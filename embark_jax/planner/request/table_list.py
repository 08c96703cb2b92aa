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
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

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
    dlrm,
    dlrm_dcnv2,
)
from embark_jax.planner.request.listed_table import Count, ListedTable
from embark_jax.planner.request.workload import (
    STATE_VALUES,
    Workload,
    looks_ahead,
)
from embark_jax.plans.fleet import Fleet
from embark_jax.plans.options import (
    DENSE_OPTIMIZERS,
    DenseParallelism,
    Kernels,
    RowOptimizerName,
)
from embark_jax.plans.tables import (
    MOST_DIM,
    FeatureSpec,
    TableSpec,
    check_model,
    embedding_width,
)
from embark_jax.plans.wire import FLOAT32, Wire
from embark_jax.statistics.accesses import NO_STATISTICS, FeatureAccess, Statistics

T = TypeVar("T")

Width = Annotated[int, Field(strict=True, ge=1, le=MOST_DIM)]
MOST_TABLES, MOST_LAYERS = 100_000, 1000
ITEM = "table list"
MODELS = Path(__file__).parents[2] / "config_files" / "models"
"""``configs/models``, through a link that a built package has as a folder."""


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

    def network(
        self, tables: Sequence[TableSpec], features: Sequence[FeatureSpec]
    ) -> DenseNetwork:
        """Returns the layers, on top of these tables."""
        width = embedding_width(tables, features) // self.pool_stride
        if self.interaction == "dot":
            return dlrm(len(features), width, self.features, self.bottom, self.top)
        return dlrm_dcnv2(
            width,
            self.features,
            self.bottom,
            self.top,
            self.cross_layers,
            self.cross_rank,
        )


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
        tables, features, _ = self._spelled_out()
        return tables, features

    def statistics(self) -> Statistics:
        """Returns what the list says of the lengths of bags."""
        _, features, means = self._spelled_out()
        accesses = {
            feature.name: FeatureAccess(mean, feature.hotness, ids_seen=0)
            for feature, mean in zip(features, means, strict=True)
            if mean < feature.hotness
        }
        return Statistics(features=accesses) if accesses else NO_STATISTICS

    def _spelled_out(
        self,
    ) -> tuple[list[TableSpec], list[FeatureSpec], list[float]]:
        """Returns tables, features, and mean ids of a bag of each feature."""
        tables: list[TableSpec] = []
        features: list[FeatureSpec] = []
        means: list[float] = []
        for listed in self.tables:
            for number in range(listed.count):
                name = listed.name or f"t{len(tables)}"
                if listed.name and listed.count > 1:
                    name = f"{listed.name}{number}"
                tables.append(listed.spec(name))
                means += listed.mean_by_feature
                if isinstance(listed.hotness, int):
                    features.append(
                        FeatureSpec(name, name, listed.hotness, listed.pooling)
                    )
                    continue
                features += [
                    FeatureSpec(f"{name}_{k}", name, hotness, listed.pooling)
                    for k, hotness in enumerate(listed.hotness)
                ]
        return tables, features, means

    def workload(
        self,
        fleet: Fleet,
        batch: int | None = None,
        zipf_exponent: float | None = None,
        optimizer: str | None = None,
        wire: Wire = FLOAT32,
        overlap: bool | None = None,
        parallelism: DenseParallelism = "replicated",
        kernels: Kernels = "xla",
    ) -> Workload:
        """Returns the workload on a fleet. Arguments take precedence over the list; the
        default is 65,536 samples a step, uniform ids, row-wise Adagrad, and routes made
        a step ahead as ``looks_ahead`` says. The dense layers take the optimizer of the
        rows."""
        tables, features = self.specs()
        optimizer = _first_set(optimizer, self.optimizer, "rowwise_adagrad")
        dense = NO_DENSE
        if self.dense is not None:
            network = self.dense.network(tables, features)
            states = STATE_VALUES[dense_optimizer_of(optimizer)][0]
            dense = network.load(states, parallelism)
        return Workload(
            fleet,
            _first_set(batch, self.batch, 65_536),
            _first_set(zipf_exponent, self.zipf_exponent, 0.0),
            optimizer=optimizer,
            statistics=self.statistics(),
            wire=wire,
            dense=dense,
            overlap=looks_ahead(overlap, fleet),
            kernels=kernels,
            sample_ids=sum(feature.hotness for feature in features),
        )


def dense_optimizer_of(optimizer: str) -> str:
    """Returns the dense layers' optimizer that goes with that of the rows: Adagrad if
    there is none of the same name."""
    name = optimizer.removeprefix("rowwise_")
    return name if name in DENSE_OPTIMIZERS else "adagrad"


def _first_set(*values: T | None) -> T:
    """Returns the first value that is not None."""
    return next(value for value in values if value is not None)


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
