"""DLRM-DCNv2, the model of the MLPerf training benchmark."""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp
from flax import nnx
from pydantic import Field, PositiveInt

from embark_jax.models.interface import (
    Embeddings,
    Joined,
    JoinedModel,
    Shapes,
    check_top,
    pooled_dims,
)
from embark_jax.models.layers import MLP, LowRankCross, side_by_side
from embark_jax.models.options import (
    BatchNorm,
    ComputeDtype,
    Dropout,
    Float8,
    Widths,
)


class DLRMDCNv2(JoinedModel):
    """DLRM whose features interact through low-rank cross layers.

    The dense features go through the bottom MLP. Its output and all embeddings,
    concatenated, go through the cross layers, and their output through the top MLP to
    one logit. Without dense features there is no bottom MLP. The defaults are those of
    MLPerf (mlcommons/training, recommendation_v2), with initializers as in torchrec's
    DLRM_DCN. Papers: https://arxiv.org/abs/1906.00091 (DLRM),
    https://arxiv.org/abs/2008.13535 (DCN-V2).

    Args:
      bottom: widths of the MLP that reads the dense features, each layer with ReLU;
        data without them have none.
      top: widths of the top MLP, which ends in one linear logit.
      cross_layers: number of cross layers.
      cross_rank: rank of each cross layer.
      float8: whether operands of the products in cross layers, and in top layers with
        ReLU, are rounded to 8 bits, scaled by the largest value of each.

    Raises:
      ValueError: if a feature is a sequence, or ``top`` does not end in 1.
    """

    def __init__(
        self,
        embedding_shapes: Shapes,
        dense_features: int,
        bottom: Widths = (512, 256, 128),
        top: Widths = (1024, 1024, 512, 256, 1),
        cross_layers: Annotated[int, Field(ge=0, le=1000)] = 3,
        cross_rank: PositiveInt = 512,
        compute_dtype: ComputeDtype = "float32",
        dropout: Dropout = 0.0,
        batch_norm: BatchNorm = False,
        float8: Float8 = False,
        *,
        rngs: nnx.Rngs,
    ):
        check_top(top)
        self.dims = pooled_dims(embedding_shapes)
        shared = {"compute_dtype": compute_dtype, "rngs": rngs}
        mlp = {**shared, "dropout": dropout, "batch_norm": batch_norm}
        bottom = bottom if dense_features else ()
        self.bottom = MLP(dense_features, bottom, last_relu=True, **mlp)
        self.beside = (dense_features, *bottom)[-1]
        width = self.beside + sum(dim for _, dim in self.dims)
        self.cross = nnx.List(
            LowRankCross(width, cross_rank, in_float8=float8, **shared)
            for _ in range(cross_layers)
        )
        self.top = MLP(width, top, last_relu=False, in_float8=float8, **mlp)
        self.compute_dtype = jnp.dtype(compute_dtype)

    def __call__(self, dense: jax.Array, embeddings: Embeddings | Joined) -> jax.Array:
        """Returns logits; see ``interface`` for shapes and errors."""
        bottom = self.bottom(dense)
        x0 = side_by_side(bottom, embeddings, self.dims, self.compute_dtype)
        x = x0
        for layer in self.cross:
            x = layer(x0, x)
        return self.top(x)[:, 0]
