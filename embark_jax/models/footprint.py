"""Finds a model's memory from shapes alone, without allocating anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from embark_jax.config import ModelConfig
from embark_jax.models.build import build
from embark_jax.models.function import FunctionModel, Model
from embark_jax.models.kept_values import kept_bytes


class Footprint(NamedTuple):
    """The memory that a model needs.

    Attributes:
      parameters: number of parameters of all layers.
      kept_bytes: bytes per sample that backward needs from forward.
    """

    parameters: int
    kept_bytes: int


def footprint(
    config: ModelConfig,
    embedding_shapes: Mapping[str, tuple[int, ...]],
    dense_features: int,
) -> Footprint:
    """Returns the footprint of the model that ``build`` makes; arguments and errors are
    those of ``build``."""
    model = nnx.eval_shape(
        lambda: build(config, embedding_shapes, dense_features, nnx.Rngs(0))
    )
    params, state, apply = _split(model)

    def backward(held, *inputs):  # a pytree of what it needs from forward
        params, state = held

        def forward(params, dense, embeddings):
            return apply(params, state, dense, embeddings)

        return jax.vjp(forward, params, *inputs)[1]

    def bytes_of(batch: int) -> int:
        embeddings = {n: _floats(batch, *s) for n, s in embedding_shapes.items()}
        dense = _floats(batch, dense_features)
        return kept_bytes(backward, (params, state), dense, embeddings)

    parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    # What does not grow with the batch is small.
    return Footprint(parameters, bytes_of(2) - bytes_of(1))


def _floats(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _split(model: Model) -> tuple[Any, Any, Callable[..., jax.Array]]:
    """Splits a model into the parameters that training changes, its other arrays, and
    ``(params, state, dense, embeddings) -> logits``."""
    if isinstance(model, FunctionModel):
        apply = model.apply
        return model.params, (), lambda params, _, *inputs: apply(params, *inputs)
    graph, params, state = nnx.split(model, nnx.Param, ...)

    def forward(params, state, dense, embeddings):
        return nnx.merge(graph, params, state, copy=True)(dense, embeddings)

    return params, state, forward
