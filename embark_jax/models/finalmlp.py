"""FinalMLP: two MLPs in parallel, fused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from pydantic import PositiveInt

from embark_jax.models.interface import (
    Embeddings,
    Joined,
    JoinedModel,
    Shapes,
    pooled_dims,
)
from embark_jax.models.layers import MLP, Linear, matmul, side_by_side, xavier_normal
from embark_jax.models.options import BatchNorm, ComputeDtype, Dropout, Widths


class FinalMLP(JoinedModel):
    """FinalMLP: a two-stream MLP with multi-head bilinear fusion.

    Each stream is an MLP over all features. With outputs ``o1`` and ``o2``, cut into
    heads, the logit is ``b + w1·o1 + w2·o2 + Σ_h o1_h W_h o2_h``. Paper:
    https://arxiv.org/abs/2304.00902; this is its model without the gates of features.

    Args:
      stream1, stream2: widths of the two MLPs, each layer with ReLU.
      heads: number of heads of the fusion.

    Raises:
      ValueError: if a feature is a sequence, or heads do not divide the last width of a
        stream.
    """

    def __init__(
        self,
        embedding_shapes: Shapes,
        dense_features: int,
        stream1: Widths = (400, 400, 400),
        stream2: Widths = (400, 400, 400),
        heads: PositiveInt = 1,
        compute_dtype: ComputeDtype = "float32",
        dropout: Dropout = 0.0,
        batch_norm: BatchNorm = False,
        *,
        rngs: nnx.Rngs,
    ):
        self.dims = pooled_dims(embedding_shapes)
        width = dense_features + sum(dim for _, dim in self.dims)
        problems = [
            f"{name} ends in {widths[-1:]}, must end in a multiple of {heads} heads"
            for name, widths in (("stream1", stream1), ("stream2", stream2))
            if not widths or widths[-1] % heads
        ]
        if problems:
            raise ValueError("; ".join(problems))
        shared = {"compute_dtype": compute_dtype, "rngs": rngs}
        mlp = {**shared, "dropout": dropout, "batch_norm": batch_norm}
        self.streams = nnx.List(
            MLP(width, widths, last_relu=True, **mlp) for widths in (stream1, stream2)
        )
        self.linear = Linear(stream1[-1] + stream2[-1], 1, **shared)
        shape = heads, stream1[-1] // heads, stream2[-1] // heads
        self.bilinear = nnx.Param(xavier_normal(rngs.params(), shape))
        self.compute_dtype = jnp.dtype(compute_dtype)

    def __call__(self, dense: jax.Array, embeddings: Embeddings | Joined) -> jax.Array:
        """Returns logits; see ``interface`` for shapes and errors."""
        x = side_by_side(dense, embeddings, self.dims, self.compute_dtype)
        first, second = outputs = [stream(x) for stream in self.streams]
        logits = self.linear(jnp.concatenate(outputs, axis=1))[:, 0]
        w = self.bilinear[...]
        for head in range(len(w)):
            _, rows, columns = w.shape
            left = first[:, head * rows : (head + 1) * rows]
            right = second[:, head * columns : (head + 1) * columns]
            logits += jnp.sum(matmul(left, w[head], self.compute_dtype) * right, axis=1)
        return logits
