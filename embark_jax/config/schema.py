"""The experiment config: frozen, typed, validated at construction.

One schema for both syntaxes: ``config_io`` reads YAML and gin into these classes. The
rest of the package takes plain arguments and never sees a parser.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Discriminator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Tag,
    model_validator,
)

from embark_jax.config.base import Config, ConfigError
from embark_jax.config.models import DLRMDCNv2Config, ModelConfig
from embark_jax.config.optimizers import (
    DenseOptimizerConfig,
    EmbeddingOptimizerConfig,
)
from embark_jax.config.own import OWN_KIND, OwnConfig, kind_tag
from embark_jax.tables import Pooling


class MeshConfig(Config):
    """Devices: ``nodes × gpus_per_node``; on CPU that many host devices are made."""

    nodes: PositiveInt = 1
    """Number of machines."""
    gpus_per_node: PositiveInt = 1
    """Devices of each machine."""

    @property
    def devices(self) -> int:
        return self.nodes * self.gpus_per_node


class SyntheticConfig(Config):
    """Power-law clicks from a planted teacher; tables and features come from
    ``embedding``."""

    kind: Literal["synthetic"] = "synthetic"
    dense_features: PositiveInt = 13
    """Columns of numbers in each sample."""
    zipf_exponent: NonNegativeFloat = 1.05
    """Exponent of the power law of ids; 0 draws all rows equally often."""
    train_samples: PositiveInt = 1_000_000
    """Samples of an epoch."""
    test_samples: PositiveInt = 100_000
    """Samples of the test set."""
    seed: NonNegativeInt = 0
    """Seed of samples and teacher, apart from that of the run: runs of a sweep over
    `seed` then differ in the initial parameters alone."""


class MovieLens100KConfig(Config):
    """MovieLens-100k; ``embark data movielens-100k`` fetches it into ``path``."""

    kind: Literal["movielens_100k"] = "movielens_100k"
    path: Path | None = None
    """Folder of the three ml-100k files; None is the cache ``embark data`` fills."""
    earlier_items: NonNegativeInt = 0
    """Length of the sequence of films that the user rated before; 0 leaves it out."""


class PreparedConfig(Config):
    """A folder that ``embark data prepare`` or ``embark data synth`` made."""

    kind: Literal["prepared"] = "prepared"
    path: Path
    """The folder, with its manifest."""


class OwnDataConfig(OwnConfig):
    """Data of one's own. What ``kind`` names is called as ``Name(**options,
    seed=seed)`` and returns a ``data.Dataset``."""


DataConfig = Annotated[
    Annotated[SyntheticConfig, Tag("synthetic")]
    | Annotated[MovieLens100KConfig, Tag("movielens_100k")]
    | Annotated[PreparedConfig, Tag("prepared")]
    | Annotated[OwnDataConfig, Tag(OWN_KIND)],
    Discriminator(kind_tag),
]


class TableConfig(Config):
    """What the data does not say of a table, and any placement to force."""

    rows: PositiveInt | None = None
    """Number of rows; real data say it themselves."""
    dim: PositiveInt | None = None
    """Parameters a row; None takes `embedding.dim`."""
    init_scale: NonNegativeFloat | None = None
    """Rows start uniform between this and its negative; None takes `rows ** -0.5`."""
    tier: Literal["device", "host", "disk"] | None = None
    """Where all rows have room: of a table on ``host`` or ``disk``, device memory holds
    as many as there are ``slots``; None is device."""
    slots: PositiveInt | Literal["auto"] | None = None
    """Rows of a table on ``host`` or ``disk`` that all devices together hold; ``auto``,
    or None, is as many as the planner finds memory for."""
    max_slots: PositiveInt | None = None
    """Makes a dynamic table: any id that is not negative is a key, and gets a row when
    it is first seen. There are ``slots`` to begin with, at least one a device, and they
    double up to this number; then rows leave. ``rows`` is for synthetic data alone: as
    many different ids are drawn."""
    evicted: Literal["host", "disk", "discard"] | None = None
    """Where rows of a dynamic table are that have left: in host memory, which None is
    too, on ``disk``, or nowhere, so that their keys are as new when seen again."""
    evict: Literal["lru", "lfu"] | None = None
    """Whose rows leave slots first: those asked for longest ago, which None is too, or
    by the fewest batches. The latter suits ids whose frequencies stay as they are."""
    cluster: Literal["dp", "rb", "ub"] | None = None
    """Forces the cluster; None leaves it to the planner, as do the next five."""
    row_shards: PositiveInt | None = None
    """Forces the number of row shards."""
    column_shards: PositiveInt | None = None
    """Forces the number of column shards, which must divide dim."""
    devices: tuple[NonNegativeInt, ...] | None = None
    """Forces the owner of each shard, row shard by row shard."""
    exchange: Literal["flat", "hierarchical"] | None = None
    """Forces the way of what travels: directly between all devices, or inside nodes
    first."""
    hot_rows: NonNegativeInt | None = None
    """Forces how many of the first rows are replicated on all devices; the rest is in
    cluster rb or ub."""


class FeatureConfig(Config):
    """A feature of synthetic data, or what to change of a dataset's own."""

    table: str | None = None
    """Table that it reads; None takes the one of the feature's own name."""
    hotness: PositiveInt | None = None
    """Ids a bag at most."""
    pooling: Pooling | None = None
    """How the rows of a bag become the output: `sum`, `mean`, or `none` for a
    sequence."""
    weighted: bool = False
    """Whether each id comes with a weight; for synthetic data only."""


class WireConfig(Config):
    """The formats in which tables' rows and gradients travel between devices; sums are
    float32. ``float16`` and ``float8_e4m3`` come with a factor for each row."""

    rows: Literal["float32", "bfloat16", "float16", "float8_e4m3"] = "float32"
    """Format of rows and partial sums on their way to the requester."""
    gradients: Literal["float32", "bfloat16", "float16", "float8_e4m3"] = "float32"
    """Format of row gradients on their way to the owner."""


class EmbeddingConfig(Config):
    """Tables, features, their optimizer and how the exchange treats them."""

    dim: PositiveInt = 32
    """Parameters a row of every table that does not set its own."""
    tables: Mapping[str, TableConfig] = {}
    """Tables by name."""
    features: Mapping[str, FeatureConfig] = {}
    """Features by name, in the order of the model's inputs."""
    optimizer: EmbeddingOptimizerConfig = EmbeddingOptimizerConfig()
    """The rule that updates touched rows."""
    on_bad_id: Literal["error", "drop", "hash"] = "error"
    """What to do with an id that is no row of its table: end the run, take it out of
    its bag, or hash it to a row."""
    capacity_slack: PositiveFloat = 1.25
    """Exchange buffers hold this multiple of what the statistics expect."""
    wire: WireConfig = WireConfig()
    """In which formats rows and gradients travel."""
    ragged: bool = False
    """Whether ids and rows of UB tables whose exchange is flat travel without padding:
    on GPUs; elsewhere they travel padded, with the same results."""
    scratch: Path | None = None
    """Folder for the rows of tables on ``disk`` while a run lasts; None is the system's
    for temporary files."""
    kernels: Literal["auto", "xla", "mosaic_gpu"] = "xla"
    """Implementation of lookups and updates; `auto` takes the best that runs on the
    devices at hand."""


class EarlyStoppingConfig(Config):
    """Training ends when the validation set has stopped to improve; the best step's
    state is kept in ``best/``, and is what the test set is evaluated with."""

    metric: Literal["auc", "log_loss"] = "auc"
    """Metric of the validation set that decides."""
    patience: PositiveInt = 2
    """Evaluations in a row without improvement after which training ends."""
    min_change: NonNegativeFloat = 0.0
    """Change that counts as an improvement."""


class PlateauConfig(Config):
    """All learning rates are lowered when the validation set no longer improves."""

    metric: Literal["auc", "log_loss"] = "auc"
    """Metric of the validation set that decides."""
    patience: PositiveInt = 1
    """Evaluations in a row that are no better, after which rates are lowered."""
    min_change: NonNegativeFloat = 0.0
    """What a value must be better by to count."""
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Rates are multiplied by it each time."""
    least: Annotated[float, Field(gt=0, le=1)] = 1e-3
    """Share of the rates that they are not lowered below."""


class TrainConfig(Config):
    """The loop. ``batch_size`` is global; intervals are in steps."""

    batch_size: PositiveInt = 2048
    """Samples a step, over all devices; a multiple of their number."""
    micro_batches: PositiveInt = 1
    """Parts of a batch that go through the model one after the other, for batches
    beyond memory; the update is one, of all."""
    dense: Literal["replicated", "zero1", "tensor"] = "replicated"
    """How the dense model lies on the devices: ``zero1`` shards its optimizer state
    over all, ``tensor`` its layers over the GPUs of a node."""
    overlap: bool = False
    """Whether the route of a batch is made during the step before it."""
    hot_batches: bool = False
    """Whether samples of hot rows alone go into batches of their own, for which no
    embedding is exchanged; every table must have hot rows. Takes host memory for 32
    batches."""
    steps: PositiveInt | None = None
    """None is as many as ``epochs`` take, or 1,000."""
    epochs: PositiveFloat | None = None
    """Passes over the training data, in place of ``steps``; what is left of the last
    that fills no batch is not trained on."""
    loss: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")] | None = None
    """A loss of your own, such as `my_module:focal_loss`, which is called with logits,
    labels and embeddings and returns a loss per sample; null is binary cross entropy.
    A model may have its own loss instead."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Labels are trained as this much of 1/2 and the rest of themselves
    (https://arxiv.org/abs/1512.00567)."""
    embedding_l2: NonNegativeFloat = 0.0
    """Half of this times the squares of all embeddings that the model is given is added
    to a sample's loss: of features with one id a bag, of the batch's rows."""
    log_every: PositiveInt = 20
    """Steps between two records of loss, AUC and throughput."""
    eval_every: PositiveInt | None = None
    """On the validation set, or the test set of data that have none; None evaluates
    only at the end, on the test set."""
    early_stopping: EarlyStoppingConfig | None = None
    """Ends training when the validation set no longer improves; needs `eval_every`."""
    plateau: PlateauConfig | None = None
    """Lowers all learning rates when the validation set no longer improves; needs
    `eval_every`."""
    checkpoint_every: PositiveInt | None = None
    """None writes only the last checkpoint."""
    keep_checkpoints: PositiveInt = 3
    """Checkpoints that are kept: the newest ones, and the best with early stopping."""
    checkpoint_memory: PositiveInt | None = None
    """Bytes of host memory that a process may take to save and to load. Training stands
    still for as long as what does not fit takes to write; None is room for all of it,
    but at most half of the memory that is free."""

    @model_validator(mode="after")
    def _agree(self):
        if self.steps is not None and self.epochs is not None:
            raise ValueError(
                f"steps is {self.steps} and epochs {self.epochs}, must be one of the "
                "two: leave the other out, or set it to null"
            )
        for key in ("label_smoothing", "embedding_l2"):
            if self.loss is not None and getattr(self, key):
                raise ValueError(
                    f"{key} is of binary cross entropy, but loss is {self.loss}: leave "
                    "one of them out"
                )
        if self.early_stopping is not None and self.eval_every is None:
            raise ValueError("early_stopping needs eval_every: set it too")
        if self.plateau is not None and self.eval_every is None:
            raise ValueError("plateau needs eval_every: set it too")
        return self


class SearchedConfig(Config):
    """Values of a key that a search chooses from: a list, or a range."""

    choose: Annotated[tuple[Any, ...], Field(min_length=1)] | None = None
    """The values themselves; or else `low` and `high`."""
    low: float | int | None = None
    """Smallest value; whole numbers on both sides give whole numbers."""
    high: float | int | None = None
    """Largest value."""
    log: bool = False
    """Whether values are drawn evenly on a logarithmic scale."""

    @model_validator(mode="after")
    def _list_or_range(self):
        if self.choose is not None:
            if (self.low, self.high) != (None, None):
                raise ValueError("has choose, and low or high: give one or the other")
        elif self.low is None or self.high is None:
            raise ValueError("must have choose, or low and high")
        elif not self.low < self.high:
            raise ValueError(f"low is {self.low}, must be below high, {self.high}")
        elif self.log and self.low <= 0:
            raise ValueError(f"low is {self.low}, must be above 0 where log is true")
        return self


class ExperimentConfig(Config):
    """Everything one run depends on."""

    name: str = "experiment"
    """Name of the run, and of its folder if none is given."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of the initial parameters and of the order of the data."""
    data: DataConfig
    """Where the samples come from."""
    model: ModelConfig = DLRMDCNv2Config()
    """The dense model."""
    mesh: MeshConfig = MeshConfig()
    """The devices."""
    fleet: str | None = None
    """What the plan is made for: a fleet's name or YAML file; None is this machine."""
    embedding: EmbeddingConfig = EmbeddingConfig()
    """Tables, features and their optimizer."""
    dense_optimizer: DenseOptimizerConfig = DenseOptimizerConfig()
    """The optimizer of the dense parameters."""
    train: TrainConfig = TrainConfig()
    """The training loop."""
    sweep: Mapping[str, Annotated[tuple[Any, ...], Field(min_length=1)]] | None = None
    """By dotted key the values that ``embark sweep`` tries, in all combinations."""
    search: Mapping[str, SearchedConfig] | None = None
    """By dotted key the values that ``embark search`` looks for good ones among."""

    @model_validator(mode="after")
    def _batch_divides(self):
        parts = self.train.micro_batches
        if self.train.batch_size % (self.mesh.devices * parts):
            cut = f" and train.micro_batches {parts}" * (parts > 1)
            raise ValueError(
                f"train.batch_size is {self.train.batch_size}, must be a multiple of "
                f"the {self.mesh.devices} devices (mesh.nodes {self.mesh.nodes} × "
                f"mesh.gpus_per_node {self.mesh.gpus_per_node}){cut}"
            )
        return self

    def shrunk(self, scale: float) -> ExperimentConfig:
        """A copy small enough to try: that share of each table's rows, but not fewer
        than 10, of the batch and of the samples, rounded up. Widths and mesh stay.

        Raises:
          ConfigError: if the data are not synthetic.
        """
        if not isinstance(self.data, SyntheticConfig):
            raise ConfigError(
                f"data.kind is {self.data.kind!r}, must be 'synthetic': a smaller "
                "table cannot hold the ids of real data; add data.kind=synthetic"
            )

        def share(whole: int) -> int:
            return math.ceil(whole * scale)

        data, devices = self.model_dump(exclude_none=True), self.mesh.devices
        for table in data["embedding"]["tables"].values():
            if "rows" in table:
                table["rows"] = max(min(10, table["rows"]), share(table["rows"]))
            for key in ("slots", "max_slots"):
                if isinstance(table.get(key), int):
                    table[key] = max(min(10, table[key]), share(table[key]))
        for key in ("train_samples", "test_samples"):
            data["data"][key] = share(data["data"][key])
        data["train"]["batch_size"] = share(self.train.batch_size // devices) * devices
        return ExperimentConfig.model_validate(data)
