"""Models made of plain functions, and models with their own loss."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import jax
from flax import nnx

from embark_jax.models.interface import Embeddings


class Samples(Protocol):
    """The part of a batch that a loss receives.

    Attributes:
      dense: ``[batch, dense_features]`` float32.
      ids: for each feature ``[batch, hotness]``, padded with -1.
      weights: for each weighted feature ``[batch, hotness]``.
      labels: ``[batch]`` float32, or ``[batch, tasks]``.
      sample_weights: ``[batch]`` float32, or None.
    """

    @property
    def dense(self) -> jax.Array: ...

    @property
    def ids(self) -> Mapping[str, jax.Array]: ...

    @property
    def weights(self) -> Mapping[str, jax.Array]: ...

    @property
    def labels(self) -> jax.Array: ...

    @property
    def sample_weights(self) -> jax.Array | None: ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FunctionModel:
    """A model of plain functions, or of any library whose models are pytrees.

    Attributes:
      params: a pytree of float32 arrays, which training changes.
      apply: ``(params, dense, embeddings) -> logits``, shaped like the labels.
      loss: ``(params, embeddings, batch) -> (loss, logits)``. Training minimizes the
        loss, which is one per sample, ``[batch]``, or the mean of a batch, ``[]``; the
        former is multiplied by the sample's weight, if it has one. It
        receives the whole batch, over all devices, or a micro-batch. None takes the
        trainer's loss of what ``apply`` returns.
      independent_samples: whether ``loss`` returns one of each sample, which depends on
        that sample alone. It may then receive the samples of one device:
        ``train.dense_wire`` needs that.
    """

    params: Any
    apply: Callable[[Any, jax.Array, Embeddings], jax.Array] = dataclasses.field(
        metadata={"static": True}
    )
    loss: Callable[[Any, Embeddings, Samples], tuple[jax.Array, jax.Array]] | None = (
        dataclasses.field(default=None, metadata={"static": True})
    )
    independent_samples: bool = dataclasses.field(
        default=False, metadata={"static": True}
    )


class ModelWithLoss(nnx.Module, abc.ABC):
    """A Flax module that defines its own loss.

    Attributes:
      independent_samples: as in ``FunctionModel``.
    """

    independent_samples: ClassVar[bool] = False

    @abc.abstractmethod
    def loss(
        self, embeddings: Embeddings, batch: Samples
    ) -> tuple[jax.Array, jax.Array]:
        """Returns ``(loss, logits)``, the loss as in ``FunctionModel``."""


Model = nnx.Module | FunctionModel
