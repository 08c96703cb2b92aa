"""The ``embedding`` section of a config: tables, features, and how rows travel."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    ByteSize,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from embark_jax._base.config import (
    Config,
    ConfigError,
    config_error_at,
    given,
    nearest,
)
from embark_jax._base.object_store import LocalPath
from embark_jax.config.optimizers import (
    ROW_RULES,
    EmbeddingOptimizerConfig,
    RowOptimizerConfig,
)
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.options import (
    ClusterName,
    Dtype,
    Evict,
    Evicted,
    ExchangeName,
    Initializer,
    Kernels,
    OnBadId,
    Pooling,
    Tier,
    WireFormat,
)
from embark_jax.plans.tables import HASHED_KEYS, FeatureSpec, TableSpec
from embark_jax.statistics.accesses import NO_STATISTICS, FeatureAccess, Statistics

_OF_PLACEMENT = {field.name for field in dataclasses.fields(ForcedPlacement)}
_SHARED = "dim", "init_scale", "initializer", "dtype"
"""Keys of all tables that a table may set for itself."""


class TableConfig(Config):
    """The properties of a table that the data do not give, and forced placements."""

    rows: PositiveInt | None = None
    """Number of rows; real data give it themselves."""
    dim: PositiveInt | None = None
    """Parameters a row; None takes `embedding.dim`."""
    init_scale: NonNegativeFloat | None = None
    """Scale of the initial values; None takes `embedding.init_scale`."""
    initializer: Initializer | None = None
    """Distribution of the initial values; None takes `embedding.initializer`."""
    optimizer: Mapping[str, Any] | None = None
    """Keys that differ from `embedding.optimizer`, such as {learning_rate: 0.1}."""
    dtype: Dtype | None = None
    """Number format of the stored rows; None takes `embedding.dtype`."""
    tier: Tier | None = None
    """Place with room for all rows. With ``host`` or ``disk``, device memory holds as
    many rows as there are ``slots``; with ``auto`` the planner chooses, devices unless
    their memory is short; None is ``device``."""
    slots: PositiveInt | Literal["auto"] | None = None
    """Rows of a table on ``host`` or ``disk`` that all devices together hold; ``auto``
    or None takes as many as the planner finds memory for."""
    max_slots: PositiveInt | None = None
    """Makes a dynamic table: any 64 bits but those of -1 are a key, and get a row when
    it is first seen. The table begins with ``slots``, at least one a device (``auto``
    or None: 16,384), which grow up to this number, at least by doubling; after that,
    rows leave. ``rows`` is for synthetic data only: the number of unique ids that are
    drawn."""
    evicted: Evicted | None = None
    """Place of rows that have left a dynamic table: ``host`` memory (also None),
    ``disk``, or nowhere (``discard``): their keys count as new when seen again."""
    evict: Evict | None = None
    """Rows that leave slots first: ``lru`` (also None) those asked for longest ago,
    ``lfu`` those asked for by the fewest batches, for ids of stable frequencies."""
    expected_keys: PositiveInt | tuple[PositiveInt, PositiveInt] | None = None
    """Number of different keys that a dynamic table is expected to meet by the end of
    the run, or ``[at the first steps, by the end]``. The table begins with slots for
    the first number, unless ``slots`` says otherwise, and memory is planned for the
    second: slots up to ``max_slots``, and a row and its key for each in ``evicted``.
    None plans for ``max_slots`` keys."""
    cluster: ClusterName | None = None
    """Forces the cluster: ``dp``, ``rb`` or ``ub``; None leaves it to the planner, as
    in the next five keys."""
    row_shards: PositiveInt | None = None
    """Forces the number of row shards."""
    column_shards: PositiveInt | None = None
    """Forces the number of column shards, which must divide dim."""
    devices: tuple[NonNegativeInt, ...] | None = None
    """Forces the owner of each shard, row shard by row shard."""
    exchange: ExchangeName | None = None
    """Forces the exchange: ``flat``, directly between all devices, or ``hierarchical``,
    inside nodes first."""
    hot_rows: NonNegativeInt | None = None
    """Forces the number of first rows that are replicated on all devices; the other
    rows are in cluster rb or ub."""

    @property
    def forced(self) -> ForcedPlacement:
        """The parts of its placement that are fixed."""
        return ForcedPlacement(**{key: getattr(self, key) for key in _OF_PLACEMENT})


class FeatureConfig(Config):
    """A feature of synthetic data, or changes to a feature of the dataset."""

    table: str | None = None
    """Table that it reads; None takes the table with the feature's name."""
    hotness: PositiveInt | None = None
    """Largest number of ids in a bag."""
    pooling: Pooling | None = None
    """Pooling of a bag's rows to one embedding: `sum`, `mean`, or `none` for a
    sequence."""
    weighted: bool | None = None
    """Whether each id comes with a weight; for synthetic data only."""
    mean_hotness: NonNegativeFloat | None = None
    """Mean number of ids in a bag, for plans without statistics; None is full bags."""

    @property
    def spec(self) -> dict[str, Any]:
        """The fields of ``FeatureSpec`` that are given."""
        return {k: v for k, v in given(self).items() if k != "mean_hotness"}


class WireConfig(Config):
    """The formats in which tables' rows and gradients travel between devices; sums are
    float32."""

    rows: WireFormat = "float32"
    """Format of rows and partial sums on their way to the requester."""
    gradients: WireFormat = "float32"
    """Format of row gradients on their way to the owner."""


class EmbeddingConfig(Config):
    """Tables, features, their optimizer and their exchange."""

    dim: PositiveInt = 32
    """Parameters a row of every table that sets no ``dim``."""
    dtype: Dtype = "float32"
    """Number format of the stored rows of every table that sets no ``dtype``. Updates
    are computed in float32; in ``bfloat16`` and ``float16`` the new row is rounded
    stochastically, so that small updates are not lost."""
    init_scale: NonNegativeFloat | None = None
    """Scale of the initial values of every table that sets no `init_scale`; None takes
    a table's `rows ** -0.5`, or `max_slots ** -0.5` if it is dynamic."""
    initializer: Initializer = "uniform"
    """Initial values of every table that sets no `initializer`: uniform in
    ±`init_scale`, or normal with this standard deviation."""
    tables: Mapping[str, TableConfig] = {}
    """Tables by name."""
    features: Mapping[str, FeatureConfig] = {}
    """Features by name, in the order of the model's inputs."""
    optimizer: RowOptimizerConfig = ROW_RULES["rowwise_adagrad"]()
    """The rule that updates touched rows."""
    on_bad_id: OnBadId = "error"
    """Treatment of an id that is no row of its table: end the run, drop it from its
    bag, or hash it to a row."""
    capacity_slack: PositiveFloat = 1.25
    """Multiple of the ids that the statistics expect; exchange buffers hold it."""
    memory_gb: PositiveFloat | None = None
    """Most memory of a device, in GB, that a step may take; None is most of all."""
    hot_budget: Annotated[ByteSize, Field(gt=0)] | None = None
    """Memory of each device, such as `512MB`, for the rows of all tables that are
    looked up most, and their optimizer state: they are replicated, and form the batches
    of `train.hot_batches`. One threshold of frequency holds for all tables (FAE,
    https://arxiv.org/abs/2103.00686). Without statistics of the data, 100,000 random
    samples are counted first. Tables of which you fix a placement keep it."""
    wire: WireConfig = WireConfig()
    """Formats in which rows and gradients travel."""
    scratch: LocalPath | None = None
    """Folder for the rows of tables on ``disk`` during a run; None is the system's
    folder for temporary files."""
    kernels: Literal["auto", Kernels] = "auto"
    """Implementation of lookups and updates: `xla`, `mosaic_gpu` (the kernels for
    Hopper GPUs), or `auto`, which takes these kernels where a small check at the start
    finds them right, and plain XLA elsewhere."""

    @model_validator(mode="after")
    def _optimizers_agree(self):
        for name in self.tables:
            with config_error_at(f"tables.{name}.optimizer"):
                self.optimizer_of(name)
        return self

    def optimizer_of(self, table: str) -> EmbeddingOptimizerConfig:
        """Returns the optimizer of a table's rows."""
        config = self.tables.get(table)
        if config is None or config.optimizer is None:
            return self.optimizer
        return self.optimizer.with_changes(config.optimizer)

    def rule_of(self, table: str) -> str:
        """Returns the name of a table's optimizer: "" for `embedding.optimizer`,
        otherwise the first, by name, of the tables that share it."""
        optimizer = self.optimizer_of(table)
        if optimizer == self.optimizer:
            return ""
        return min(name for name in self.tables if self.optimizer_of(name) == optimizer)

    def table(self, name: str, rows: int) -> TableSpec:
        """Makes a table, with ``rows`` if this section has none for it.

        Raises:
          ValueError: if its values do not fit together.
        """
        config = self.tables.get(name, TableConfig())
        if rows == HASHED_KEYS and config.max_slots is None:
            raise ValueError(
                f"table {name!r}: its ids are keys of 63 bits, so it must be dynamic; "
                "give it max_slots"
            )
        fields: dict[str, Any] = {key: getattr(self, key) for key in _SHARED}
        fields |= {"rows": rows, "slots": None}
        fields |= {k: v for k, v in given(config).items() if k not in _OF_PLACEMENT}
        fields["optimizer"] = self.rule_of(name)
        if config.slots == "auto":
            fields["slots"] = None
        if config.max_slots is not None:
            if config.tier is not None:
                raise ValueError(
                    f"table {name!r}: max_slots makes it dynamic; give evicted, not "
                    "tier"
                )
            del fields["rows"]
            return TableSpec.dynamic(name, **fields)
        if config.evicted is not None:
            raise ValueError(
                f"table {name!r}: evicted is {config.evicted!r}, but only rows of a "
                "dynamic table are evicted to somewhere; set max_slots, or tier"
            )
        return TableSpec(name, **fields)

    def mean_lengths(self) -> Statistics:
        """Returns what the features say of the lengths of bags."""
        lengths = {
            name: FeatureAccess(feature.mean_hotness, feature.hotness or 1, ids_seen=0)
            for name, feature in self.features.items()
            if feature.mean_hotness is not None
        }
        return Statistics(features=lengths) if lengths else NO_STATISTICS

    def declared(self, need: str) -> tuple[dict[str, int], tuple[FeatureSpec, ...]]:
        """Returns the rows of each table, and the features, that this section declares.

        A section without features gets one feature for each table.

        Args:
          need: says in errors why it must declare them.

        Raises:
          ConfigError: if it has no tables, a table has no rows, or a feature is wrong.
        """
        known = {name for name, table in self.tables.items() if table.rows is not None}
        missing = [
            f"embedding.tables.{name}: has no rows, which must be set: {need}"
            + (f"; {nearest(name, known)}" if known else "")
            for name in self.tables
            if name not in known
        ]
        if not self.tables:
            missing = [f"embedding.tables: has none; {need}"]
        if missing:
            raise ConfigError("\n".join(missing))
        table_rows = {name: table.rows or 0 for name, table in self.tables.items()}
        features = self.features or dict.fromkeys(self.tables, FeatureConfig())
        with config_error_at("embedding"):
            return table_rows, tuple(
                FeatureSpec(name, **feature.spec) for name, feature in features.items()
            )
