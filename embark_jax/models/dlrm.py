"""DLRM with the dot interaction of the original paper."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from embark_jax.models.interface import (
    Embeddings,
    Joined,
    JoinedModel,
    Shapes,
    check_equal_dims,
    check_top,
    pooled_dims,
)
from embark_jax.models.layers import MLP, side_by_side
from embark_jax.models.options import BatchNorm, ComputeDtype, Dropout, Widths

PAIRED = "as the last of bottom, or the others, have: the dot interaction pairs them"


class DLRM(JoinedModel):
    """DLRM: features interact through the dot products of all their pairs.

    The top MLP reads the bottom MLP's output, then the dot products of all pairs among
    that output and the embeddings. Paper: https://arxiv.org/abs/1906.00091. Without
    dense features there is no bottom MLP, and the top MLP reads the dot products of the
    embeddings alone.

    Args:
      bottom: widths of the MLP that reads the dense features, each layer with ReLU;
        the last must be dim. Data without dense features have none.
      top: widths of the top MLP, which ends in one linear logit.

    Raises:
      ValueError: if a feature's dim is not the last of ``bottom``, or without dense
        features that of the others; or if there is no pair.
    """

    def __init__(
        self,
        embedding_shapes: Shapes,
        dense_features: int,
        bottom: Widths = (512, 256, 128),
        top: Widths = (1024, 1024, 512, 256, 1),
        compute_dtype: ComputeDtype = "float32",
        dropout: Dropout = 0.0,
        batch_norm: BatchNorm = False,
        *,
        rngs: nnx.Rngs,
    ):
        check_top(top)
        self.dims = pooled_dims(embedding_shapes)
        bottom = bottom if dense_features else ()
        width = self.beside = (dense_features, *bottom)[-1]
        check_equal_dims(self.dims, width, PAIRED)
        shared = {"compute_dtype": compute_dtype, "rngs": rngs}
        mlp = {**shared, "dropout": dropout, "batch_norm": batch_norm}
        self.bottom = MLP(dense_features, bottom, last_relu=True, **mlp)
        pairs = number_of_pairs(len(self.dims) + (dense_features > 0))
        self.top = MLP(width + pairs, top, last_relu=False, **mlp)
        self.compute_dtype = jnp.dtype(compute_dtype)

    def __call__(self, dense: jax.Array, embeddings: Embeddings | Joined) -> jax.Array:
        """Returns logits; see ``interface`` for shapes and errors."""
        bottom = self.bottom(dense)
        vectors = side_by_side(bottom, embeddings, self.dims, self.compute_dtype)
        vectors = vectors.reshape(bottom.shape[0], -1, self.dims[0][1])
        interactions = pairwise_dots(vectors.astype(self.compute_dtype))
        return self.top(jnp.concatenate([bottom, interactions], axis=1))[:, 0]


def number_of_pairs(vectors: int) -> int:
    """Returns the number of pairs; raises ``ValueError`` if there is none."""
    if vectors < 2:
        raise ValueError(
            "one feature is alone, and there are no dense features: the dot "
            "interaction needs a second feature to pair it with"
        )
    return vectors * (vectors - 1) // 2


def pairwise_dots(vectors: jax.Array) -> jax.Array:
    """Returns dot products of all pairs ``i > j``, ordered (1, 0), (2, 0), (2, 1), ….

    Args:
      vectors: ``[batch, n, dim]``.

    Returns:
      ``[batch, n (n - 1) / 2]`` float32: the Gram matrix below its diagonal.
    """
    gram = jnp.einsum(
        "bnd,bmd->bnm", vectors, vectors, preferred_element_type=jnp.float32
    )
    below = np.tril_indices(vectors.shape[1], -1)
    return gram.at[:, *below].get(unique_indices=True, mode="promise_in_bounds")
