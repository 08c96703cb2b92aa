"""The experiment config: frozen, typed, validated at construction.

Both syntaxes share one schema: ``reading`` reads YAML and gin into these classes. The
rest of the package takes plain arguments and never sees a parser.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
    model_validator,
)

from embark_jax._base.config import Config, ConfigError, nearest
from embark_jax.config.data import DataConfig, SyntheticConfig
from embark_jax.config.embedding import EmbeddingConfig
from embark_jax.config.models import ModelConfig
from embark_jax.config.optimizers import DENSE_RULES, AnyDenseOptimizerConfig
from embark_jax.config.own import NAMED
from embark_jax.metrics.ranking import DECIDING, METRICS
from embark_jax.plans.options import DenseParallelism, WireFormat


class MeshConfig(Config):
    """Devices: ``nodes × gpus_per_node``; on CPU these are host devices."""

    nodes: PositiveInt = 1
    """Number of machines."""
    gpus_per_node: PositiveInt = 1
    """Devices of each machine; without a number as many as the `fleet` has, if it is
    named."""

    @property
    def devices(self) -> int:
        return self.nodes * self.gpus_per_node


class _ImprovementConfig(Config):
    """What counts as an improvement."""

    metric: str = "auc"
    """Metric of the validation set that decides: auc, log_loss, normalized_entropy,
    accuracy, hr@10, ndcg@10, or one of `train.metrics`; evaluations where it is
    undefined do not count."""
    min_change: NonNegativeFloat = 0.0
    """Change that an improvement must exceed."""


class EarlyStoppingConfig(_ImprovementConfig):
    """Training ends when the validation set no longer improves. The checkpoint of the
    best step is kept, and the test set is evaluated with it."""

    patience: PositiveInt = 2
    """Consecutive evaluations without improvement that end training."""


class PlateauConfig(_ImprovementConfig):
    """All learning rates are lowered when the validation set no longer improves."""

    patience: PositiveInt = 1
    """Consecutive evaluations without improvement that lower the rates."""
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Factor of all rates each time."""
    least: Annotated[float, Field(gt=0, le=1)] = 1e-3
    """Smallest share of the rates that lowering leaves."""


class OwnMetricConfig(Config):
    """A metric of your own, which is shown, logged, stopped early on and searched by
    like any other."""

    function: Annotated[str, Field(pattern=f"^{NAMED}$")]
    """A function, such as `my_metrics:lift`, which is called with labels, scores and
    weights of all samples, and their groups, NumPy arrays `[samples]` of which the last
    two may be None, and returns a number, or None where it is undefined. Of several
    labels it is called for each, with the samples that have it. Scores are log odds."""
    higher_is_better: bool = True
    """Whether larger values are better."""
    groups: str | None = None
    """Feature of one id a sample whose ids are the groups, such as the user."""


class RetrievalConfig(Config):
    """Evaluations of a retrieval model search all items for the one that each positive
    sample has: HR@K and NDCG@K."""

    at: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (10,)
    """The cutoffs K."""
    exclude: str | None = None
    """Feature of items that the user has seen, such as the history, which a server
    would hide: the search leaves them out, the one that was met, too, and the share of
    such repeats is measured. None searches all."""


class TrainConfig(Config):
    """The training loop. ``batch_size`` is global; intervals are in steps."""

    batch_size: PositiveInt = 2048
    """Samples a step, over all devices; a multiple of their number."""
    micro_batches: PositiveInt = 1
    """Equal parts of a batch that go through the model one after the other, where its
    activations do not fit in memory; embeddings are looked up and updated for all."""
    dense: DenseParallelism = "replicated"
    """Layout of the dense model on the devices: ``zero1`` shards its optimizer state
    over all devices, ``tensor`` its layers over the GPUs of a node."""
    dense_wire: WireFormat = "float32"
    """Number format in which gradients of the dense model travel: ``bfloat16`` takes
    half the bytes. It needs a model without BatchNorm, dropout or other state; one with
    its own loss must set ``independent_samples``."""
    hot_batches: bool = False
    """Whether samples with only hot rows go into batches of their own, for which no
    embedding is exchanged. Tables of up to 1 MiB are then replicated; others need
    hot rows, which `embedding.hot_budget` gives. Takes host memory for 32 batches."""
    steps: PositiveInt | None = None
    """Number of steps; None takes as many as ``epochs`` need, or 1,000."""
    epochs: PositiveFloat | None = None
    """Passes over the training data, in place of ``steps``; the last samples
    are left out if they fill no batch."""
    loss: Annotated[str, Field(pattern=f"^{NAMED}$")] | None = None
    """Your own loss, such as `my_module:focal_loss`, which is called with logits,
    labels and embeddings and returns a loss per sample; null is binary cross entropy. A
    model may have its own loss instead."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of 1/2 in the trained label; the rest is the original label
    (https://arxiv.org/abs/1512.00567)."""
    task_weights: Mapping[str, NonNegativeFloat] = {}
    """Factors of the losses of tasks, which are summed; other tasks have factor 1."""
    embedding_l2: NonNegativeFloat = 0.0
    """Half of this number times the squares of all embeddings of a sample is added to
    its loss; for features with one id a bag these are the batch's rows."""
    init_from: str | None = None
    """A run, or one of its checkpoints, whose rows and dense parameters this run starts
    from: rows by the values that they stand for, where prepared data say so, and
    otherwise by number."""
    init_optimizer: Literal["keep", "new"] = "keep"
    """With `init_from`, whether the state of the optimizers comes over, too, so that
    steps go on being counted, or begins anew."""
    loggers: tuple[Literal["tensorboard", "wandb"], ...] = ("tensorboard",)
    """Where metrics go beside `metrics.jsonl`: events of TensorBoard, and Weights &
    Biases, offline, too (`WANDB_MODE=offline`)."""
    log_every: PositiveInt = 20
    """Steps between two records of loss, AUC and throughput."""
    eval_every: PositiveInt | None = None
    """Steps between two evaluations on the validation set, or on the test set if there
    is none; None evaluates only at the end, on the test set."""
    retrieval: RetrievalConfig | None = None
    """HR@K and NDCG@K over all items, which evaluations of `next_item` and of
    `two_tower` measure, too, where an item's vector is made of its id alone; None
    measures neither."""
    metrics: Mapping[Annotated[str, Field(pattern=r"^\w+$")], OwnMetricConfig] = {}
    """Metrics of your own, by name."""
    early_stopping: EarlyStoppingConfig | None = None
    """Ends training when the validation set no longer improves; needs `eval_every`."""
    plateau: PlateauConfig | None = None
    """Lowers all learning rates when the validation set no longer improves; needs
    `eval_every`."""
    checkpoint_every: PositiveInt | None = None
    """Steps between two checkpoints; None writes only the last one."""
    keep_checkpoints: PositiveInt = 3
    """Number of checkpoints that are kept: the newest, and with early stopping the
    best."""
    checkpoint_memory: PositiveInt | None = None
    """Bytes of host memory that a process may take to save and to load. Training waits
    while the part that does not fit is written; None takes room for a quarter of it."""

    @model_validator(mode="after")
    def _agree(self):
        if self.steps is not None and self.epochs is not None:
            raise ValueError(
                f"steps is {self.steps} and epochs {self.epochs}, must be one of the "
                "two: leave the other out, or set it to null"
            )
        for key in ("label_smoothing", "embedding_l2", "task_weights"):
            if self.loss is not None and getattr(self, key):
                raise ValueError(
                    f"{key} is of binary cross entropy, but loss is {self.loss}: leave "
                    "one of them out"
                )
        if self.dense == "tensor" and self.dense_wire != "float32":
            raise ValueError(
                f"dense_wire is {self.dense_wire!r}, must be 'float32' where dense is "
                "'tensor': set dense to replicated or zero1"
            )
        if self.early_stopping is not None and self.eval_every is None:
            raise ValueError("early_stopping needs eval_every: set it too")
        if self.plateau is not None and self.eval_every is None:
            raise ValueError("plateau needs eval_every: set it too")
        if taken := sorted(self.metrics.keys() & METRICS):
            raise ValueError(f"metrics.{taken[0]}: has the name of another metric")
        known = [*DECIDING, *self.metrics]
        for key in ("early_stopping", "plateau"):
            section = getattr(self, key)
            if section is None:
                continue
            if section.metric not in known:
                hint = nearest(section.metric, known)
                raise ValueError(f"{key}.metric is {section.metric!r}; {hint}")
            if "@" not in section.metric:
                continue
            if self.retrieval is None or 10 not in self.retrieval.at:
                raise ValueError(
                    f"{key}.metric is {section.metric}, which needs retrieval: set "
                    "retrieval.at to [10]"
                )
        return self


class SearchedConfig(Config):
    """Values of a key that a search chooses from: a list, or a range."""

    choose: Annotated[tuple[Any, ...], Field(min_length=1)] | None = None
    """The values themselves; the alternative is `low` and `high`."""
    low: float | int | None = None
    """Smallest value; if both limits are whole numbers, so are the values."""
    high: float | int | None = None
    """Largest value."""
    log: bool = False
    """Whether values are drawn evenly on a logarithmic scale."""

    @model_validator(mode="before")
    @classmethod
    def _of_list(cls, data: Any) -> Any:
        return {"choose": data} if isinstance(data, list | tuple) else data

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
    """All settings of one run."""

    name: str = "experiment"
    """Name of the run, and of its folder unless another is given."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of the initial parameters and of the order of the data."""
    data: DataConfig
    """Source of the samples."""
    model: SerializeAsAny[ModelConfig] = Field(
        default=cast(ModelConfig, {"kind": "dlrm_dcnv2"}), validate_default=True
    )
    """The dense model."""
    mesh: MeshConfig = MeshConfig()
    """The devices."""
    fleet: str | None = None
    """Fleet that the plan is for: its name or YAML file; None is this machine."""
    embedding: EmbeddingConfig = EmbeddingConfig()
    """Tables, features and their optimizer."""
    dense_optimizer: AnyDenseOptimizerConfig = DENSE_RULES["adagrad"]()
    """The optimizer of the dense parameters."""
    train: TrainConfig = TrainConfig()
    """The training loop."""
    search: Mapping[str, SearchedConfig] | None = None
    """Values by dotted key that ``embark search`` tries: a list, or a range."""

    @model_validator(mode="after")
    def _batch_divides(self):
        micro_batches = self.train.micro_batches
        if self.train.batch_size % (self.mesh.devices * micro_batches):
            cut = f" and train.micro_batches {micro_batches}" * (micro_batches > 1)
            raise ValueError(
                f"train.batch_size is {self.train.batch_size}, must be a multiple of "
                f"the {self.mesh.devices} devices (mesh.nodes {self.mesh.nodes} × "
                f"mesh.gpus_per_node {self.mesh.gpus_per_node}){cut}"
            )
        return self

    def shrunk(self, scale: float) -> ExperimentConfig:
        """Returns a copy small enough to try: this share of each table's rows, at least
        10, of the batch and of the samples, rounded up. Widths and mesh stay.

        Raises:
          ConfigError: if the data are not synthetic, or it is no share.
        """
        if not isinstance(scale, int | float) or not 0 < scale <= 1:
            raise ConfigError(f"{scale} given, must be a number above 0, and at most 1")
        if not isinstance(self.data, SyntheticConfig):
            raise ConfigError(
                f"data.kind is {self.data.kind!r}, must be 'synthetic': a smaller "
                "table cannot hold the ids of real data; add data.kind=synthetic"
            )

        def share(whole: int) -> int:
            return math.ceil(whole * scale)

        data = self.model_dump(exclude={"model"}, exclude_none=True)
        parts = self.mesh.devices * self.train.micro_batches
        for table in data["embedding"]["tables"].values():
            if "rows" in table:
                table["rows"] = max(min(10, table["rows"]), share(table["rows"]))
            for key in ("slots", "max_slots"):
                if isinstance(table.get(key), int):
                    table[key] = max(min(10, table[key]), share(table[key]))
        for key in ("train_samples", "test_samples"):
            data["data"][key] = share(data["data"][key])
        data["train"]["batch_size"] = share(self.train.batch_size // parts) * parts
        return ExperimentConfig.model_validate(data | {"model": self.model})
