"""Models that are no Flax modules, and models with a loss of their own."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
from flax import nnx

Embeddings = Mapping[str, jax.Array]


class Samples(Protocol):
    """What a loss is given of a batch.

    Attributes:
      dense: ``[batch, dense_features]`` float32.
      ids: for each feature ``[batch, hotness]``, padded with -1.
      weights: for each weighted feature ``[batch, hotness]``.
      labels: ``[batch]`` float32.
    """

    @property
    def dense(self) -> jax.Array: ...

    @property
    def ids(self) -> Mapping[str, jax.Array]: ...

    @property
    def weights(self) -> Mapping[str, jax.Array]: ...

    @property
    def labels(self) -> jax.Array: ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FunctionModel:
    """A model of plain functions, or of any library whose models are pytrees.

    Attributes:
      params: a pytree of float32 arrays, which training changes.
      apply: ``(params, dense, embeddings) -> logits [batch]``.
      loss: ``(params, embeddings, batch) -> (loss, logits)``, what training makes
        small: of each sample, ``[batch]``, or the mean of a batch, ``[]``. It is given
        the whole batch, over all devices; of micro-batches a part. None is the
        trainer's loss of what ``apply`` gives.
    """

    params: Any
    apply: Callable[[Any, jax.Array, Embeddings], jax.Array] = dataclasses.field(
        metadata={"static": True}
    )
    loss: Callable[[Any, Embeddings, Samples], tuple[jax.Array, jax.Array]] | None = (
        dataclasses.field(default=None, metadata={"static": True})
    )


class ModelWithLoss(nnx.Module, abc.ABC):
    """A Flax module that says itself what training makes small."""

    @abc.abstractmethod
    def loss(
        self, embeddings: Embeddings, batch: Samples
    ) -> tuple[jax.Array, jax.Array]:
        """``(loss, logits [batch])``, the loss as of ``FunctionModel``."""


Model = nnx.Module | FunctionModel


def split(model: Model) -> tuple[Any, Any, Callable[..., jax.Array]]:
    """What training changes of a model, its other arrays, and ``(params, state, dense,
    embeddings) -> logits``."""
    if isinstance(model, FunctionModel):
        apply = model.apply
        return model.params, (), lambda params, _, *inputs: apply(params, *inputs)
    graph, params, state = nnx.split(model, nnx.Param, ...)

    def forward(params, state, dense, embeddings):
        return nnx.merge(graph, params, state, copy=True)(dense, embeddings)

    return params, state, forward
