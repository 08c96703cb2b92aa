"""DeepFM: a factorization machine and a deep net over the same vectors."""

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

_VECTOR_STD = 0.1
"""Standard deviation of the initial vectors of dense features: the default of libFM
(https://www.libfm.org)."""


class DeepFM(nnx.Module):
    """DeepFM: the logit of a factorization machine plus that of an MLP.

    The first column of each embedding is its first-order weight, the others are its
    vector. Fields interact through the dot products of all pairs of vectors, and the
    MLP reads all vectors, concatenated. A dense feature is a field too: its value times
    a learned vector. A bag is one field, its pooled vectors. Paper:
    https://arxiv.org/abs/1703.04247; the default is its MLP for Criteo, without
    dropout.

    Args:
      deep: widths of the MLP, each layer with ReLU; a linear logit follows.

    Raises:
      ValueError: if a feature is a sequence or its dim is neither 1 nor that of the
        other features, or if all dims are 1.
    """

    def __init__(
        self,
        embedding_shapes: Shapes,
        dense_features: int,
        deep: Widths = (400, 400, 400),
        compute_dtype: ComputeDtype = "float32",
        dropout: Dropout = 0.0,
        batch_norm: BatchNorm = False,
        *,
        rngs: nnx.Rngs,
    ):
        self.dims = pooled_dims(embedding_shapes)
        largest = max(dim for _, dim in self.dims)
        unequal = [
            f"feature {name!r} has dim {dim}, must be {largest}, as the largest has: "
            "pairs of features are multiplied (or 1, for a first-order weight alone)"
            for name, dim in self.dims
            if dim not in (1, largest)
        ]
        if unequal:
            raise ValueError("; ".join(unequal))
        check_deep(largest - 1)
        shared = {"compute_dtype": compute_dtype, "rngs": rngs}
        mlp = {**shared, "dropout": dropout, "batch_norm": batch_norm}
        self.first_order = FirstOrder(dense_features, **shared)
        size = (dense_features, largest - 1)
        init = nnx.initializers.normal(_VECTOR_STD)
        self.dense_vectors = nnx.Param(init(rngs.params(), size))
        fields = dense_features + sum(dim > 1 for _, dim in self.dims)
        self.deep = MLP(fields * size[1], (*deep, 1), last_relu=False, **mlp)

    def __call__(self, dense: jax.Array, embeddings: Embeddings) -> jax.Array:
        """Returns logits; see ``interface`` for shapes and errors."""
        linear, vectors = self.first_order(dense, in_order(embeddings, self.dims))
        vectors = [v for v in vectors if v.shape[1]]
        from_dense = dense[:, :, None] * self.dense_vectors[...][None]
        fields = jnp.concatenate([from_dense, *(v[:, None] for v in vectors)], axis=1)
        deep = self.deep(fields.reshape(fields.shape[0], -1))
        return linear + sum_of_pairs(fields) + deep[:, 0]


def sum_of_pairs(vectors: jax.Array) -> jax.Array:
    """Returns the sum of the dot products of all pairs, in time linear in their number.

    The sum is half of the squared sum minus the sum of squares (Rendle, Factorization
    Machines, https://doi.org/10.1109/ICDM.2010.127, lemma 3.1).

    Args:
      vectors: ``[batch, n, dim]``.

    Returns:
      ``[batch]``.
    """
    squared_sum = jnp.sum(vectors, axis=1) ** 2
    return jnp.sum(squared_sum - jnp.sum(vectors**2, axis=1), axis=1) / 2
