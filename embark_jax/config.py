"""The experiment config: frozen, typed, validated at construction.

One schema for both syntaxes: ``config_io`` reads YAML and gin into these classes. The
rest of the package takes plain arguments and never sees a parser.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from embark_jax.tables import Pooling


class ConfigError(ValueError):
    """A config that cannot be used; the message names every problem, one a line."""


def read_text(path: Path) -> str:
    """The text of a file that a user names.

    Raises:
      ConfigError: if it cannot be read, or is no UTF-8 text.
    """
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text ({error})") from None


class Config(BaseModel):
    """Base of all sections: immutable, and closed to keys it does not know.

    ``None`` means "not set", so a key that takes it must have it as its default.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class MeshConfig(Config):
    """Devices: ``nodes × gpus_per_node``; on CPU that many host devices are made."""

    nodes: PositiveInt = 1
    gpus_per_node: PositiveInt = 1

    @property
    def devices(self) -> int:
        return self.nodes * self.gpus_per_node


class SyntheticConfig(Config):
    """Power-law clicks from a planted teacher; tables and features come from
    ``embedding``."""

    kind: Literal["synthetic"] = "synthetic"
    dense_features: PositiveInt = 13
    zipf_exponent: NonNegativeFloat = 1.05
    train_samples: PositiveInt = 1_000_000
    test_samples: PositiveInt = 100_000
    seed: NonNegativeInt = 0
    """Of samples and teacher, apart from that of the run: seeds of a sweep then differ
    in the initial parameters alone."""


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


DataConfig = Annotated[
    SyntheticConfig | MovieLens100KConfig | PreparedConfig, Field(discriminator="kind")
]


class TableConfig(Config):
    """What the data does not say of a table, and any placement to force."""

    rows: PositiveInt | None = None
    dim: PositiveInt | None = None
    init_scale: NonNegativeFloat | None = None
    cluster: Literal["dp", "rb", "ub"] | None = None
    row_shards: PositiveInt | None = None
    column_shards: PositiveInt | None = None
    devices: tuple[NonNegativeInt, ...] | None = None
    """Owner of each shard, row shard by row shard."""
    exchange: Literal["flat", "hierarchical"] | None = None
    """Directly between all devices, or inside nodes first."""
    hot_rows: NonNegativeInt | None = None
    """So many of its first rows are replicated, the rest is in cluster rb or ub."""


class FeatureConfig(Config):
    """A feature of synthetic data, or what to change of a dataset's own."""

    table: str | None = None
    hotness: PositiveInt | None = None
    pooling: Pooling | None = None
    weighted: bool = False
    """Synthetic data only: each id comes with a weight."""


class EmbeddingOptimizerConfig(Config):
    """Applied once to each touched row."""

    kind: Literal["sgd", "adagrad", "rowwise_adagrad", "adam"] = "rowwise_adagrad"
    learning_rate: PositiveFloat = 0.01
    eps: PositiveFloat = 1e-8
    initial_accumulator: NonNegativeFloat = 0.0
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999


class WireConfig(Config):
    """The formats in which tables' rows and gradients travel between devices; sums are
    float32. ``float16`` and ``float8_e4m3`` come with a factor for each row."""

    rows: Literal["float32", "bfloat16", "float16", "float8_e4m3"] = "float32"
    gradients: Literal["float32", "bfloat16", "float16", "float8_e4m3"] = "float32"


class EmbeddingConfig(Config):
    """Tables, features, their optimizer and how the exchange treats them."""

    dim: PositiveInt = 32
    """Of every table that does not set its own."""
    tables: Mapping[str, TableConfig] = {}
    features: Mapping[str, FeatureConfig] = {}
    optimizer: EmbeddingOptimizerConfig = EmbeddingOptimizerConfig()
    on_bad_id: Literal["error", "drop", "hash"] = "error"
    capacity_slack: PositiveFloat = 1.25
    """Exchange buffers hold this multiple of what the statistics expect."""
    wire: WireConfig = WireConfig()
    ragged: bool = False
    """Whether ids and rows of UB tables whose exchange is flat travel without padding:
    on GPUs; elsewhere they travel padded, with the same results."""
    kernels: Literal["auto", "xla", "mosaic_gpu"] = "xla"
    """Of lookups and updates; ``auto`` is the best that runs here."""


class DLRMDCNv2Config(Config):
    """DLRM with low-rank cross layers (https://arxiv.org/abs/2008.13535)."""

    kind: Literal["dlrm_dcnv2"] = "dlrm_dcnv2"
    bottom: tuple[PositiveInt, ...] = (512, 256, 128)
    top: tuple[PositiveInt, ...] = (1024, 1024, 512, 256, 1)
    cross_layers: NonNegativeInt = 3
    cross_rank: PositiveInt = 512
    compute_dtype: Literal["float32", "bfloat16"] = "float32"


class DLRMConfig(Config):
    """DLRM with dot interaction (https://arxiv.org/abs/1906.00091)."""

    kind: Literal["dlrm"] = "dlrm"
    bottom: tuple[PositiveInt, ...] = (512, 256, 128)
    top: tuple[PositiveInt, ...] = (1024, 1024, 512, 256, 1)
    compute_dtype: Literal["float32", "bfloat16"] = "float32"


class DCNConfig(Config):
    """DCN, version 1: cross layers of one vector each beside an MLP
    (https://arxiv.org/abs/1708.05123)."""

    kind: Literal["dcn"] = "dcn"
    cross_layers: PositiveInt = 6
    deep: tuple[PositiveInt, ...] = (1024, 1024)
    compute_dtype: Literal["float32", "bfloat16"] = "float32"


class WideDeepConfig(Config):
    """Wide & Deep (https://arxiv.org/abs/1606.07792). The first column of a table is
    its ids' weights in the wide part; a table of dim 1 is in no other."""

    kind: Literal["wide_deep"] = "wide_deep"
    deep: tuple[PositiveInt, ...] = (1024, 512, 256)
    compute_dtype: Literal["float32", "bfloat16"] = "float32"


class DeepFMConfig(Config):
    """DeepFM (https://arxiv.org/abs/1703.04247). The first column of a table is its
    ids' first-order weights."""

    kind: Literal["deepfm"] = "deepfm"
    deep: tuple[PositiveInt, ...] = (400, 400, 400)
    compute_dtype: Literal["float32", "bfloat16"] = "float32"


class TBSMConfig(Config):
    """TBSM: attention over a behaviour sequence (https://arxiv.org/abs/2008.11922)."""

    kind: Literal["tbsm"] = "tbsm"
    history: Annotated[Mapping[str, str], Field(min_length=1)]
    """For each sequence feature (pooling none) the feature whose past it is."""
    bottom: tuple[PositiveInt, ...] = (16,)
    event: tuple[PositiveInt, ...] = (15, 15)
    attention: tuple[PositiveInt, ...] = (15, 15)
    top: tuple[PositiveInt, ...] = (60, 1)
    compute_dtype: Literal["float32", "bfloat16"] = "float32"


AnyModelConfig = (
    DLRMDCNv2Config
    | DLRMConfig
    | DCNConfig
    | WideDeepConfig
    | DeepFMConfig
    | TBSMConfig
)
ModelConfig = Annotated[AnyModelConfig, Field(discriminator="kind")]


class DenseOptimizerConfig(Config):
    """The optax optimizer of the dense parameters."""

    kind: Literal["sgd", "adagrad", "adam"] = "adagrad"
    learning_rate: PositiveFloat = 0.01
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0


class TrainConfig(Config):
    """The loop. ``batch_size`` is global; intervals are in steps."""

    batch_size: PositiveInt = 2048
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
    steps: PositiveInt = 1000
    log_every: PositiveInt = 20
    eval_every: PositiveInt | None = None
    """On the validation set, or the test set of data that have none; None evaluates
    only at the end, on the test set."""
    checkpoint_every: PositiveInt | None = None
    """None writes only the last checkpoint."""
    keep_checkpoints: PositiveInt = 3
    checkpoint_memory: PositiveInt | None = None
    """Bytes of host memory that a process may take to save and to load. Training stands
    still for as long as what does not fit takes to write; None is room for all of it,
    but at most half of the memory that is free."""


class ExperimentConfig(Config):
    """Everything one run depends on."""

    name: str = "experiment"
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    data: DataConfig
    model: ModelConfig = DLRMDCNv2Config()
    mesh: MeshConfig = MeshConfig()
    fleet: str | None = None
    """What the plan is made for: a fleet's name or YAML file; None is this machine."""
    embedding: EmbeddingConfig = EmbeddingConfig()
    dense_optimizer: DenseOptimizerConfig = DenseOptimizerConfig()
    train: TrainConfig = TrainConfig()
    sweep: Mapping[str, Annotated[tuple[Any, ...], Field(min_length=1)]] | None = None
    """By dotted key the values that ``embark sweep`` tries, in all combinations."""

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

    @model_validator(mode="after")
    def _steps_agree(self):
        if self.train.hot_batches and self.train.overlap:
            raise ValueError(
                "train.hot_batches is true, and so is train.overlap, which makes the "
                "route of every batch in the step before it; set one of them to false"
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
        for key in ("train_samples", "test_samples"):
            data["data"][key] = share(data["data"][key])
        data["train"]["batch_size"] = share(self.train.batch_size // devices) * devices
        return ExperimentConfig.model_validate(data)


def sections(annotation: Any) -> list[type[Config]]:
    """The sections a field may hold: none, one, or several that ``kind`` tells apart.

    Args:
      annotation: of the field, from ``model_fields``.
    """
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return [annotation]
    return [found for inner in get_args(annotation) for found in sections(inner)]


def kind_of(section: type[Config]) -> str:
    """The value of ``kind`` that chooses this section among several."""
    return section.model_fields["kind"].default


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the known one it resembles, or else all of them."""
    known = sorted(known)
    if close := difflib.get_close_matches(name, known, n=1):
        return f"did you mean {close[0]}?"
    return f"known: {', '.join(known) or 'none'}"
