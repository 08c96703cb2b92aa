"""DIN: weighs a user's history by how much it relates to the candidate."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from embark_jax.models.interface import (
    Embeddings,
    MaskedModel,
    Shapes,
    check_embeddings,
    check_history,
    unmasked,
)
from embark_jax.models.layers import BATCH_NORM_MOMENTUM, MLP, matmul
from embark_jax.models.options import ComputeDtype, Dropout, History, Widths


class Dice(nnx.Module):
    """The paper's activation: ``p(s) s + (1 - p(s)) α s``, with ``p`` the sigmoid of s
    normalized over the batch, and α learned for each unit (section 5.3)."""

    def __init__(self, width: int, *, rngs: nnx.Rngs):
        self.norm = nnx.BatchNorm(
            width,
            momentum=BATCH_NORM_MOMENTUM,
            use_bias=False,
            use_scale=False,
            rngs=rngs,
        )
        self.alpha = nnx.Param(jnp.zeros(width))

    def __call__(self, x: jax.Array) -> jax.Array:
        share = nnx.sigmoid(self.norm(x))
        return share * x + (1 - share) * self.alpha[...][None] * x


class DIN(MaskedModel):
    """Deep Interest Network: local activation of a user's behaviours.

    An activation unit, an MLP over a behaviour, the candidate, their difference and
    their product, says how much each behaviour of the history counts. The sum of the
    behaviours with these weights, without a softmax, and all other features go into
    the MLP that gives the logit. Paper: https://arxiv.org/abs/1706.06978; the default
    widths are its own. Padding of a sequence counts nothing.

    Args:
      history: for each sequence feature the pooled feature whose past values it holds,
        such as ``{"item_history": "item"}``, of the same dim.
      activation: widths of the hidden layers of each activation unit.
      deep: widths of the hidden layers of the MLP.

    Raises:
      ValueError: if ``history`` does not fit the features.
    """

    def __init__(
        self,
        embedding_shapes: Shapes,
        dense_features: int,
        history: History,
        activation: Widths = (80, 40),
        deep: Widths = (200, 80),
        compute_dtype: ComputeDtype = "float32",
        dropout: Dropout = 0.0,
        *,
        rngs: nnx.Rngs,
    ):
        self.shapes = tuple(sorted(embedding_shapes.items()))
        self.history = tuple(sorted(history.items()))
        check_history(embedding_shapes, history)
        shared: dict[str, Any] = {"compute_dtype": compute_dtype, "rngs": rngs}
        shared |= {"last_relu": False, "activation": Dice}
        self.units = nnx.List(
            MLP(4 * embedding_shapes[n][1], (*activation, 1), **shared)
            for n, _ in self.history
        )
        width = dense_features + sum(shape[-1] for _, shape in self.shapes)
        self.deep = MLP(width, (*deep, 1), dropout=dropout, **shared)

    def __call__(self, dense: jax.Array, embeddings: Embeddings) -> jax.Array:
        """Returns logits; see ``interface`` for shapes and errors."""
        embeddings, valid = unmasked(embeddings)
        check_embeddings(embeddings, self.shapes)
        vectors = dict(embeddings)
        for unit, (name, candidate) in zip(self.units, self.history, strict=True):
            past = embeddings[name], valid[name]
            vectors[name] = interest(unit, *past, embeddings[candidate])
        ordered = [vectors[name] for name, _ in self.shapes]
        return self.deep(jnp.concatenate([dense, *ordered], axis=1))[:, 0]


def interest(
    unit: MLP, past: jax.Array, valid: jax.Array, candidate: jax.Array
) -> jax.Array:
    """Returns ``[batch, dim]``: the sum of the behaviours, weighted by how much each
    relates to the candidate.

    Args:
      unit: the activation unit, which returns a weight.
      past: ``[batch, length, dim]``.
      valid: ``[batch, length]`` which places hold a behaviour.
      candidate: ``[batch, dim]``.
    """
    first, (batch, length, dim) = unit.layers[0], past.shape
    of_past, of_candidate, of_difference, of_product = jnp.split(first.w[...], 4)

    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        return matmul(x, w, first.compute_dtype)

    hidden = product(past.reshape(-1, dim), of_past + of_difference)
    related = (past * candidate[:, None]).reshape(-1, dim)
    hidden = (hidden + product(related, of_product)).reshape(batch, length, -1)
    hidden += product(candidate, of_candidate - of_difference)[:, None]
    hidden = hidden.reshape(batch * length, -1) + first.b[...][None]
    weights = unit.after_first(hidden).reshape(past.shape[:2])
    weights = jnp.where(valid, weights, 0.0)
    return jnp.einsum("bt,btd->bd", weights, past)
