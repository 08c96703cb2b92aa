"""Layers that read sequences of events: HSTU's and SASRec's.

An event attends to itself and to those before it. Layers apply to the events of all
samples, ``[…, width]``; ``events`` says where those of a sample lie.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from embark_jax.models.events import Sequences
from embark_jax.models.layers import Linear


def project(layer: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """Applies a layer of ``[batch, width]`` to each event of ``[…, width]``."""
    return layer(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)


def _in_float32(function: Callable[..., jax.Array], *arrays: jax.Array) -> jax.Array:
    """Returns what a function makes of arrays in float32, in their own dtype."""
    result = function(*(array.astype(jnp.float32) for array in arrays))
    return result.astype(arrays[0].dtype)


class STU(nnx.Module):
    """A layer of HSTU (https://arxiv.org/abs/2402.17152, equations 1 to 3).

    Of the normalized input it makes gates, values, queries and keys, all through SiLU;
    what attention with SiLU sums up is normalized, gated, and added to the input. In
    MLPerf's variant only gates go through SiLU, and the last product reads the gates
    and the sums, too, beside the gated sums.

    Args:
      width: width of an event.
      heads: number of heads.
      dim: width of the queries, keys and values of a head.
      distances: distances of events that have a bias of their own; 0 makes no bias.
      variant: ``paper``, or ``dlrm_v4`` for MLPerf's.
      compute_dtype: dtype of the operands of products, and of the arrays between them;
        what is added up from layer to layer is float32.
      dropout: share of the gated values that training sets to zero.
      rngs: its ``params`` stream draws the weights, its ``dropout`` stream the masks.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        dim: int,
        distances: int = 0,
        *,
        variant: Literal["paper", "dlrm_v4"] = "paper",
        compute_dtype: DTypeLike,
        dropout: float,
        rngs: nnx.Rngs,
    ):
        self.heads, self.dim, self.variant = heads, dim, variant
        shared = {"compute_dtype": compute_dtype, "rngs": rngs}
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.uvqk = Linear(width, 4 * heads * dim, **shared)
        self.gated_norm = nnx.LayerNorm(heads * dim, rngs=rngs)
        read = heads * dim * (3 if variant == "dlrm_v4" else 1)
        self.output = Linear(read, width, **shared)
        self.bias = nnx.Param(jnp.zeros(distances)) if distances else None
        self.dropout = nnx.Dropout(dropout, rngs=rngs) if dropout else None

    def __call__(self, x: jax.Array, sequences: Sequences) -> jax.Array:
        made = project(self.uvqk.rounded, self.norm(x))
        if self.variant == "paper":
            made = _in_float32(nnx.silu, made)
        heads, gate = self.heads, made[..., : self.heads * self.dim]
        bias = None if self.bias is None else self.bias[...]
        # Gates come first, then values, queries and keys.
        first = 2 * heads, 3 * heads, heads
        made = made.reshape(*made.shape[:-1], -1, self.dim)
        total = sequences.attend(made, heads, first, "silu", bias).reshape(gate.shape)

        def gated_by(gate, total):
            return gate * self.gated_norm(total)

        if self.variant == "paper":
            gated = _in_float32(gated_by, gate, total)
        else:
            gate = _in_float32(nnx.silu, gate)
            gated = [gate, total, _in_float32(gated_by, gate, total)]
            gated = jnp.concatenate(gated, axis=-1)
        gated = self.dropout(gated) if self.dropout else gated
        return x + project(self.output.rounded, gated).astype(x.dtype)


class TransformerLayer(nnx.Module):
    """A layer of SASRec (https://arxiv.org/abs/1808.09781, section III-B): causal
    self-attention, then two linear layers with ReLU between them, each of the
    normalized input and added to the input. Arguments as in ``STU``."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        compute_dtype: DTypeLike,
        dropout: float,
        rngs: nnx.Rngs,
    ):
        self.heads = heads
        shared = {"compute_dtype": compute_dtype, "rngs": rngs}
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.qkv = Linear(width, 3 * width, **shared)
        self.output = Linear(width, width, **shared)
        self.inner_norm = nnx.LayerNorm(width, rngs=rngs)
        self.inner = Linear(width, width, **shared)
        self.outer = Linear(width, width, **shared)
        self.dropout = nnx.Dropout(dropout, rngs=rngs) if dropout else None

    def __call__(self, x: jax.Array, sequences: Sequences) -> jax.Array:
        made, heads = project(self.qkv.rounded, self.norm(x)), self.heads
        made = made.reshape(*x.shape[:-1], 3 * heads, -1)
        first = 0, heads, 2 * heads
        total = sequences.attend(made, heads, first, "softmax").reshape(x.shape)
        x = x + self._dropped(project(self.output.rounded, total)).astype(x.dtype)
        hidden = nnx.relu(project(self.inner.rounded, self.inner_norm(x)))
        hidden = self._dropped(project(self.outer.rounded, hidden))
        return x + hidden.astype(x.dtype)

    def _dropped(self, x: jax.Array) -> jax.Array:
        return self.dropout(x) if self.dropout else x


class SequenceEncoder(nnx.Module):
    """Layers over a sequence of events, whose positions have learned vectors.

    Args:
      encoder: ``hstu`` or ``sasrec``.
      width: width of an event.
      length: largest number of events.
      layers: number of layers.
      heads: number of heads, which must divide the width.
      compute_dtype, dropout, rngs: as in ``STU``.

    Raises:
      ValueError: if heads do not divide the width.
    """

    def __init__(
        self,
        encoder: Literal["hstu", "sasrec"],
        width: int,
        length: int,
        layers: int,
        heads: int,
        *,
        compute_dtype: DTypeLike,
        dropout: float,
        rngs: nnx.Rngs,
    ):
        if width % heads:
            raise ValueError(f"heads is {heads}, must divide the width, {width}")
        shared = {"compute_dtype": compute_dtype, "dropout": dropout, "rngs": rngs}
        vectors = 0.02 * jax.random.normal(rngs.params(), (length, width))
        self.position_vectors = nnx.Param(vectors)
        if encoder == "hstu":
            dim = width // heads
            stack = [STU(width, heads, dim, length, **shared) for _ in range(layers)]
        else:
            stack = [TransformerLayer(width, heads, **shared) for _ in range(layers)]
        self.layers = nnx.List(stack)
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs) if dropout else None

    def __call__(self, events: jax.Array, sequences: Sequences) -> jax.Array:
        """Returns ``[…, width]``, of each event what it has seen.

        Args:
          events: ``[…, width]``.
          sequences: where the events of a sample lie.
        """
        x = events + sequences.by_position(self.position_vectors[...])
        x = self.dropout(x) if self.dropout else x
        for layer in self.layers:
            x = layer(x, sequences)
        return self.norm(x)
