"""DCN, the first Deep & Cross Network."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from embark_jax.models.interface import (
    Embeddings,
    Joined,
    JoinedModel,
    Shapes,
    pooled_dims,
)
from embark_jax.models.layers import MLP, Linear, VectorCross, side_by_side
from embark_jax.models.options import BatchNorm, ComputeDtype, Dropout, Layers, Widths


class DCN(JoinedModel):
    """Deep & Cross Network, version 1: cross layers in parallel with a deep net.

    The concatenated dense features and embeddings go through cross layers with one
    weight vector each, ``x0 (x · w) + b + x``, and in parallel through an MLP; one
    linear layer joins both into the logit. The defaults are the best that the paper
    reports on Criteo (https://arxiv.org/abs/1708.05123, section 4.3); its batch
    normalization is left out. DCN-V2 is ``DLRMDCNv2``.

    Args:
      cross_layers: number of cross layers.
      deep: widths of the MLP, each layer with ReLU.

    Raises:
      ValueError: if a feature is a sequence.
    """

    def __init__(
        self,
        embedding_shapes: Shapes,
        dense_features: int,
        cross_layers: Layers = 6,
        deep: Widths = (1024, 1024),
        compute_dtype: ComputeDtype = "float32",
        dropout: Dropout = 0.0,
        batch_norm: BatchNorm = False,
        *,
        rngs: nnx.Rngs,
    ):
        self.dims = pooled_dims(embedding_shapes)
        shared = {"compute_dtype": compute_dtype, "rngs": rngs}
        mlp = {**shared, "dropout": dropout, "batch_norm": batch_norm}
        width = dense_features + sum(dim for _, dim in self.dims)
        self.cross = nnx.List(VectorCross(width, **shared) for _ in range(cross_layers))
        self.deep = MLP(width, deep, last_relu=True, **mlp)
        self.top = Linear(width + (width, *deep)[-1], 1, **shared)
        self.compute_dtype = jnp.dtype(compute_dtype)

    def __call__(self, dense: jax.Array, embeddings: Embeddings | Joined) -> jax.Array:
        """Returns logits; see ``interface`` for shapes and errors."""
        x0 = side_by_side(dense, embeddings, self.dims, self.compute_dtype)
        x = x0
        for layer in self.cross:
            x = layer(x0, x)
        return self.top(jnp.concatenate([x, self.deep(x0)], axis=1))[:, 0]
