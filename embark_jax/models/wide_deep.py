"""Wide & Deep: a linear model and a deep net trained together."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from embark_jax.models.interface import (
    Embeddings,
    Shapes,
    check_deep,
    in_order,
    pooled_dims,
)
from embark_jax.models.layers import MLP, FirstOrder
from embark_jax.models.options import BatchNorm, ComputeDtype, Dropout, Widths


class WideDeep(nnx.Module):
    """Wide & Deep: the logit of a linear model plus that of an MLP.

    The first column of each embedding is the weight of its id in the linear model; the
    other columns go into the MLP. So one lookup serves both, and a feature whose table
    has dim 1, such as a crossed feature, is in the wide part only. Paper:
    https://arxiv.org/abs/1606.07792; its MLP is the default. In the paper the wide part
    has its own optimizer; here a table has one optimizer.

    Args:
      deep: widths of the MLP, each layer with ReLU; a linear logit follows.

    Raises:
      ValueError: if a feature is a sequence, or there is nothing for the deep part.
    """

    def __init__(
        self,
        embedding_shapes: Shapes,
        dense_features: int,
        deep: Widths = (1024, 512, 256),
        compute_dtype: ComputeDtype = "float32",
        dropout: Dropout = 0.0,
        batch_norm: BatchNorm = False,
        *,
        rngs: nnx.Rngs,
    ):
        self.dims = pooled_dims(embedding_shapes)
        shared = {"compute_dtype": compute_dtype, "rngs": rngs}
        mlp = {**shared, "dropout": dropout, "batch_norm": batch_norm}
        self.wide = FirstOrder(dense_features, **shared)
        width = dense_features + sum(dim - 1 for _, dim in self.dims)
        check_deep(width)
        self.deep = MLP(width, (*deep, 1), last_relu=False, **mlp)

    def __call__(self, dense: jax.Array, embeddings: Embeddings) -> jax.Array:
        """Returns logits; see ``interface`` for shapes and errors."""
        wide, vectors = self.wide(dense, in_order(embeddings, self.dims))
        return wide + self.deep(jnp.concatenate([dense, *vectors], axis=1))[:, 0]
