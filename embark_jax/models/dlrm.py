"""DLRM with the dot interaction of the original paper."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from embark_jax.models.interface import check_top, in_order, pooled_dims
from embark_jax.models.layers import MLP
from embark_jax.models.options import ComputeDtype, Dropout, Widths


class DLRM(nnx.Module):
    """DLRM: features interact through the dot products of all their pairs.

    The top MLP reads the bottom MLP's output, then the dot products of all pairs among
    that output and the embeddings. Paper: https://arxiv.org/abs/1906.00091. Without
    dense features there is no bottom MLP, and the top MLP reads the dot products of the
    embeddings alone.

    Args:
      embedding_shapes: each feature's embedding shape per sample, ``(dim,)``, with the
        same dim for all. Features are taken sorted by name.
      dense_features: number of dense features; may be 0.
      bottom: widths of the MLP that reads the dense features, each layer with ReLU;
        the last must be dim. Data without dense features have none.
      top: widths of the top MLP, which ends in one linear logit.
      compute_dtype: dtype of matrix operands; parameters and sums are float32.
      dropout: share of an MLP's hidden values that training sets to zero.
      batch_norm: whether an MLP's hidden values are normalized before their ReLU.
      rngs: its ``params`` stream draws the weights.

    Raises:
      ValueError: if a feature is a sequence or its dim differs from the last of
        ``bottom``, or without dense features from the others' dim; if there is no pair;
        or if ``top`` does not end in 1.
    """

    def __init__(
        self,
        embedding_shapes: Mapping[str, tuple[int, ...]],
        dense_features: int,
        bottom: Widths = (512, 256, 128),
        top: Widths = (1024, 1024, 512, 256, 1),
        compute_dtype: ComputeDtype = "float32",
        dropout: Dropout = 0.0,
        batch_norm: bool = False,
        *,
        rngs: nnx.Rngs,
    ):
        check_top(top)
        self.dims = pooled_dims(embedding_shapes)
        if dense_features:
            width, origin = (dense_features, *bottom)[-1], "the last of bottom"
            joined = width
        else:
            width, origin = self.dims[0][1], f"as {self.dims[0][0]!r} has"
            bottom, joined = (), 0
        unequal = [
            f"feature {name!r} has dim {dim}, must be {width}, {origin}: the dot "
            "interaction pairs them"
            for name, dim in self.dims
            if dim != width
        ]
        if unequal:
            raise ValueError("; ".join(unequal))
        vectors = len(self.dims) + (dense_features > 0)
        if vectors < 2:
            raise ValueError(
                f"feature {self.dims[0][0]!r} is alone, and there are no dense "
                "features: the dot interaction needs a second feature to pair it with"
            )
        shared = {"compute_dtype": compute_dtype, "rngs": rngs}
        mlp = {**shared, "dropout": dropout, "batch_norm": batch_norm}
        self.bottom = MLP(dense_features, bottom, last_relu=True, **mlp)
        pairs = vectors * (vectors - 1) // 2
        self.top = MLP(joined + pairs, top, last_relu=False, **mlp)
        self.compute_dtype = jnp.dtype(compute_dtype)

    def __call__(
        self, dense: jax.Array, embeddings: Mapping[str, jax.Array]
    ) -> jax.Array:
        """Returns logits; see ``interface`` for shapes and errors."""
        bottom = self.bottom(dense)
        vectors = in_order(embeddings, self.dims)
        if bottom.shape[1]:
            vectors = [bottom, *vectors]
        stacked = jnp.stack(vectors, axis=1)
        interactions = pairwise_dots(stacked.astype(self.compute_dtype))
        return self.top(jnp.concatenate([bottom, interactions], axis=1))[:, 0]


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
