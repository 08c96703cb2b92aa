"""The ``model`` section of a config: one class for each model."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from embark_jax._base.config import Config
from embark_jax.config.own import OwnConfig, one_of

MOST_LAYERS = 1000
"""Most equal layers or experts of a model: each is made, even to count it, so that a
slip of the pen would not end."""


class BaseModelConfig(Config):
    """The keys that all models have."""

    kind: str
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the operands of matrix products, and of wide arrays between the products;
    parameters and sums are float32."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of an MLP's hidden values that training sets to zero."""

    @model_validator(mode="before")
    @classmethod
    def _without_batch_norm(cls, given: Any):
        """Earlier runs stored ``batch_norm: false`` of models that have none, too."""
        if "batch_norm" in cls.model_fields or not isinstance(given, Mapping):
            return given
        return {k: v for k, v in given.items() if (k, v) != ("batch_norm", False)}


class NormalizableConfig(BaseModelConfig):
    """What models have whose MLPs may normalize their values."""

    batch_norm: bool = False
    """Whether an MLP's hidden values are batch-normalized before their ReLU."""


class DLRMDCNv2Config(NormalizableConfig):
    """DLRM with low-rank cross layers (https://arxiv.org/abs/2008.13535)."""

    kind: Literal["dlrm_dcnv2"] = "dlrm_dcnv2"
    bottom: tuple[PositiveInt, ...] = (512, 256, 128)
    """Widths of the MLP that reads the dense features; data without them have none."""
    top: tuple[PositiveInt, ...] = (1024, 1024, 512, 256, 1)
    """Widths of the MLP behind or beside the cross layers; the last is 1, the logit."""
    structure: Literal["stacked", "parallel"] = "stacked"
    """Place of that MLP: behind the cross layers (``stacked``), or beside them, with
    one linear layer for the logit (``parallel``)."""
    cross_layers: Annotated[int, Field(ge=0, le=MOST_LAYERS)] = 3
    """Number of cross layers."""
    cross_rank: PositiveInt = 512
    """Rank of each cross layer's matrix."""


class DLRMConfig(NormalizableConfig):
    """DLRM with dot interaction (https://arxiv.org/abs/1906.00091)."""

    kind: Literal["dlrm"] = "dlrm"
    bottom: tuple[PositiveInt, ...] = (512, 256, 128)
    """Widths of the MLP that reads the dense features; the last is the tables' dim.
    Data without dense features have none."""
    top: tuple[PositiveInt, ...] = (1024, 1024, 512, 256, 1)
    """Widths of the MLP behind the dot products; the last is 1, the logit."""


class DCNConfig(NormalizableConfig):
    """DCN, version 1: cross layers with one weight vector each, in parallel with an MLP
    (https://arxiv.org/abs/1708.05123)."""

    kind: Literal["dcn"] = "dcn"
    cross_layers: Annotated[int, Field(ge=1, le=MOST_LAYERS)] = 6
    """Number of cross layers."""
    deep: tuple[PositiveInt, ...] = (1024, 1024)
    """Widths of the MLP in parallel with the cross layers."""


class WideDeepConfig(NormalizableConfig):
    """Wide & Deep (https://arxiv.org/abs/1606.07792). The first column of a table holds
    its ids' weights in the wide part; a table of dim 1 belongs to that part only."""

    kind: Literal["wide_deep"] = "wide_deep"
    deep: tuple[PositiveInt, ...] = (1024, 512, 256)
    """Widths of the deep part's MLP."""


class DeepFMConfig(NormalizableConfig):
    """DeepFM (https://arxiv.org/abs/1703.04247). The first column of a table holds its
    ids' first-order weights."""

    kind: Literal["deepfm"] = "deepfm"
    deep: tuple[PositiveInt, ...] = (400, 400, 400)
    """Widths of the deep part's MLP."""


class TBSMConfig(NormalizableConfig):
    """TBSM: attention over a behaviour sequence (https://arxiv.org/abs/2008.11922)."""

    kind: Literal["tbsm"] = "tbsm"
    history: Annotated[
        Mapping[str, str], Field(min_length=1, examples=[{"past_items": "item"}])
    ]
    """Feature whose past values each sequence feature (pooling none) holds."""
    bottom: tuple[PositiveInt, ...] = (16,)
    """Widths of the MLP that reads the dense features; data without them have none."""
    event: tuple[PositiveInt, ...] = (15, 15)
    """Widths of the MLP that reads each event of a sequence."""
    attention: tuple[PositiveInt, ...] = (15, 15)
    """Widths of the MLP that weighs the events."""
    top: tuple[PositiveInt, ...] = (60, 1)
    """Widths of the MLP behind the attention; the last is 1, the logit."""


class AutoIntConfig(NormalizableConfig):
    """AutoInt (https://arxiv.org/abs/1810.11921); with ``deep`` it is AutoInt+."""

    kind: Literal["autoint"] = "autoint"
    attention: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (64, 64, 64)
    """Width of each attention layer, all heads together."""
    heads: PositiveInt = 2
    """Attention heads, which must divide each width."""
    deep: tuple[PositiveInt, ...] = ()
    """Hidden widths of the network in parallel with attention; () means no network."""


class FinalMLPConfig(NormalizableConfig):
    """FinalMLP (https://arxiv.org/abs/2304.00902)."""

    kind: Literal["finalmlp"] = "finalmlp"
    stream1: tuple[PositiveInt, ...] = (400, 400, 400)
    """Hidden widths of the first stream."""
    stream2: tuple[PositiveInt, ...] = (400, 400, 400)
    """Hidden widths of the second stream."""
    heads: PositiveInt = 1
    """Heads of the bilinear term that joins the streams."""
    gate: tuple[PositiveInt, ...] = ()
    """Hidden widths of the feature gates; () means no gates."""
    context1: tuple[str, ...] = ()
    """Features that the first stream's gate reads; () means a learned vector."""
    context2: tuple[str, ...] = ()
    """Features that the second stream's gate reads; () means a learned vector."""


class DINConfig(BaseModelConfig):
    """DIN (https://arxiv.org/abs/1706.06978)."""

    kind: Literal["din"] = "din"
    history: Annotated[
        Mapping[str, str], Field(min_length=1, examples=[{"past_items": "item"}])
    ]
    """Feature whose past values each sequence feature (pooling none) holds."""
    activation: tuple[PositiveInt, ...] = (80, 40)
    """Hidden widths of the unit that weighs events of the history."""
    deep: tuple[PositiveInt, ...] = (200, 80)
    """Hidden widths of the network on top."""


class RetrievalModelConfig(BaseModelConfig):
    """What models have that are trained by a softmax over sampled items."""

    temperature: PositiveFloat = 0.05
    """Number that divides the products of vectors before the softmax."""
    in_batch: bool = True
    """Whether the items of a batch's samples are negatives of each other."""
    uniform_negatives: NonNegativeInt = 0
    """Items drawn at random for each sample, which are negatives of the whole batch."""

    @property
    @abc.abstractmethod
    def item(self) -> str:
        """The feature that identifies the item."""


class TwoTowerConfig(RetrievalModelConfig, NormalizableConfig):
    """Two towers for retrieval (https://doi.org/10.1145/3298689.3346996)."""

    kind: Literal["two_tower"] = "two_tower"
    items: Annotated[tuple[str, ...], Field(min_length=1, examples=[("item",)])]
    """Features of the item; the first one identifies it."""
    tower: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (128, 64)
    """Widths of each tower; the last is the length of the vectors."""

    @property
    def item(self) -> str:
        return self.items[0]


class HSTUConfig(NormalizableConfig):
    """HSTU as a ranking model (https://arxiv.org/abs/2402.17152)."""

    kind: Literal["hstu"] = "hstu"
    history: Annotated[
        Mapping[str, str], Field(min_length=1, examples=[{"past_items": "item"}])
    ]
    """Feature whose past values each sequence feature (pooling none) holds."""
    width: PositiveInt = 64
    """Width of an event."""
    layers: Annotated[int, Field(ge=1, le=MOST_LAYERS)] = 3
    """Number of layers."""
    heads: PositiveInt = 4
    """Attention heads, which must divide the width."""
    deep: tuple[PositiveInt, ...] = (64,)
    """Hidden widths of the network behind the candidate."""


class DLRMv4Config(BaseModelConfig):
    """HSTU as MLPerf Training's DLRMv4 has it
    (https://github.com/mlcommons/training)."""

    kind: Literal["dlrm_v4"] = "dlrm_v4"
    history: Annotated[
        Mapping[str, str], Field(min_length=1, examples=[{"past_items": "item"}])
    ]
    """Feature whose past values each sequence feature (pooling none) holds."""
    content: Annotated[str, Field(examples=["past_items"])]
    """The sequence whose rows have an MLP of their own."""
    encodings: tuple[str, ...] = ()
    """Sequences whose rows are added to events as they are: of times and actions."""
    width: PositiveInt = 64
    """Width of an event."""
    hidden: PositiveInt = 32
    """Hidden width of the MLPs of events."""
    layers: Annotated[int, Field(ge=1, le=MOST_LAYERS)] = 3
    """Number of layers."""
    heads: PositiveInt = 4
    """Attention heads."""
    head_dim: PositiveInt = 16
    """Width of queries, keys and values of a head."""
    deep: PositiveInt = 64
    """Hidden width of the candidate's MLP and of the logit's."""
    samples_at_once: PositiveInt | None = None
    """Samples of the batch that go through the model at once: of these alone
    activations are in memory. None is all."""
    input_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of an event's values that training sets to zero."""


class NextItemConfig(RetrievalModelConfig):
    """SASRec or HSTU for retrieval of the next item (https://arxiv.org/abs/1808.09781,
    https://arxiv.org/abs/2402.17152)."""

    kind: Literal["next_item"] = "next_item"
    history: Annotated[
        Mapping[str, str],
        Field(min_length=1, max_length=1, examples=[{"past_items": "item"}]),
    ]
    """The sequence feature (pooling none), and the feature whose past values it
    holds."""
    encoder: Literal["hstu", "sasrec"] = "hstu"
    """Layers that read the history."""
    layers: Annotated[int, Field(ge=1, le=MOST_LAYERS)] = 2
    """Number of layers."""
    heads: PositiveInt = 1
    """Attention heads, which must divide the dim of the item."""
    every_position: bool = False
    """Whether training predicts every event of a history by those before it, not the
    item of a sample alone."""

    @property
    def item(self) -> str:
        (item,) = self.history.values()
        return item


class MMoEConfig(NormalizableConfig):
    """MMoE, for data with several labels (https://doi.org/10.1145/3219819.3220007)."""

    kind: Literal["mmoe"] = "mmoe"
    tasks: Annotated[tuple[str, ...], Field(min_length=2, examples=[("click", "like")])]
    """Names of the tasks: the labels of the data, in their order."""
    experts: Annotated[int, Field(ge=1, le=MOST_LAYERS)] = 8
    """Experts, which all tasks share; a single one makes the shared-bottom model."""
    expert: tuple[PositiveInt, ...] = (256,)
    """Widths of each expert."""
    tower: tuple[PositiveInt, ...] = (64,)
    """Hidden widths of each task's own network on top."""


class OwnModelConfig(OwnConfig):
    """Your own model. The object that ``kind`` names is called as
    ``Name(embedding_shapes, dense_features, **options, rngs=rngs)`` and returns the
    model. A model for several labels has them as its option ``tasks``."""


MODELS: dict[type[BaseModelConfig], str] = {
    DLRMDCNv2Config: "embark_jax.models.dlrm_dcnv2:DLRMDCNv2",
    DLRMConfig: "embark_jax.models.dlrm:DLRM",
    DCNConfig: "embark_jax.models.dcn:DCN",
    WideDeepConfig: "embark_jax.models.wide_deep:WideDeep",
    DeepFMConfig: "embark_jax.models.deepfm:DeepFM",
    TBSMConfig: "embark_jax.models.tbsm:TBSM",
    AutoIntConfig: "embark_jax.models.autoint:AutoInt",
    FinalMLPConfig: "embark_jax.models.finalmlp:FinalMLP",
    DINConfig: "embark_jax.models.din:DIN",
    TwoTowerConfig: "embark_jax.models.two_tower:TwoTower",
    HSTUConfig: "embark_jax.models.hstu:HSTU",
    DLRMv4Config: "embark_jax.models.dlrm_v4:DLRMv4",
    NextItemConfig: "embark_jax.models.next_item:NextItem",
    MMoEConfig: "embark_jax.models.mmoe:MMoE",
}
"""The registry of models: the section of each, and the class that takes its keys as
arguments, imported when a model is built: configs are read without JAX."""

AnyModelConfig = BaseModelConfig | OwnModelConfig
if TYPE_CHECKING:
    ModelConfig = AnyModelConfig
else:
    ModelConfig = one_of((*MODELS, OwnModelConfig))


def negatives_of(model: AnyModelConfig) -> tuple[str, int] | None:
    """Returns the item and the number of uniform negatives of a sample of a model that
    has some."""
    if not isinstance(model, RetrievalModelConfig) or not model.uniform_negatives:
        return None
    return model.item, model.uniform_negatives


def tasks_of(model: AnyModelConfig) -> tuple[str, ...]:
    """Returns the names of a model's tasks, if it has several; otherwise ()."""
    if isinstance(model, OwnModelConfig):
        return tuple(model.options.get("tasks", ()))
    return getattr(model, "tasks", ())
