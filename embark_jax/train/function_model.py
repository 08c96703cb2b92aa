"""The model as a step takes it, and how a model of plain functions becomes one."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from embark_jax.models.function import FunctionModel, Model
from embark_jax.train.device_batch import Columns
from embark_jax.train.flax_model import CALL, FlaxModel, check_logits
from embark_jax.train.losses import Loss


class StepModel(Protocol):
    """A model taken apart into arrays and functions of them.

    Attributes:
      params: arrays that the optimizer changes.
      state: all other arrays.
    """

    @property
    def params(self) -> Any: ...

    @property
    def state(self) -> Any: ...

    def train(
        self, params: Any, state: Any, embeddings: dict, batch: Columns, loss: Loss
    ) -> tuple[jax.Array, jax.Array, Any]:
        """Returns ``(losses, logits, new state)`` in training mode; losses are
        ``[batch]``, or their mean ``[]``, and logits have the shape of the labels.

        Args:
          loss: loss of models without one of their own.
        """
        ...

    def score(
        self,
        params: Any,
        state: Any,
        dense: jax.Array,
        embeddings: dict,
        method: str = CALL,
    ) -> jax.Array:
        """Returns logits in evaluation mode, or another method's result."""
        ...

    def module(self, params: Any, state: Any) -> Any:
        """Returns a model like the given one, with copies of these arrays."""
        ...


class PlainModel:
    """A ``FunctionModel`` as a step takes it; it has no state."""

    state: Any = ()

    def __init__(self, model: FunctionModel):
        self._model = model
        self.params = model.params

    def train(self, params, state, embeddings, batch, loss):
        if self._model.loss is None:
            logits = self.score(params, state, batch.dense, embeddings)
            check_logits(logits, batch.labels)
            return loss(logits, batch.labels, embeddings), logits, state
        losses, logits = self._model.loss(params, embeddings, batch)
        return losses, check_logits(logits, batch.labels), state

    def score(self, params, state, dense, embeddings, method=CALL):
        if method != CALL:
            raise ValueError(f"method is {method!r}: a model of functions has none")
        return self._model.apply(params, dense, embeddings)

    def module(self, params, state):
        return dataclasses.replace(self._model, params=jax.tree.map(jnp.copy, params))


def step_model(model: Model) -> StepModel:
    """Returns the model as a step takes it."""
    if isinstance(model, FunctionModel):
        return PlainModel(model)
    return FlaxModel(model)
