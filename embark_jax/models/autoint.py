"""AutoInt: fields interact by self-attention."""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from pydantic import Field, PositiveInt

from embark_jax.models.interface import (
    Embeddings,
    Joined,
    JoinedModel,
    Shapes,
    check_equal_dims,
    pooled_dims,
)
from embark_jax.models.layers import MLP, Linear, matmul, side_by_side, xavier_normal
from embark_jax.models.options import BatchNorm, ComputeDtype, Dropout, Widths

_VECTOR_STD = 0.1
"""Standard deviation of the initial vectors of dense features, as in ``DeepFM``."""


class InteractingLayer(nnx.Module):
    """Multi-head self-attention between fields, with a residual of the field itself.

    In head h, field m attends to field k by ``softmax_k(W_q e_m · W_k e_k)`` and takes
    that share of ``W_v e_k``; the layer returns ``ReLU(all heads concatenated + W_res
    e_m)`` (section 4.4 of the paper).

    Args:
      inputs: width of a field.
      outputs: width of a field after the layer, over all heads.
      heads: number of heads, which share ``outputs`` evenly.
      compute_dtype: dtype of the matrix products' operands.
      rngs: its ``params`` stream draws the weights.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        heads: int,
        *,
        compute_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        def weights():
            return nnx.Param(xavier_normal(rngs.params(), (inputs, outputs)))

        self.query = weights()
        self.key = weights()
        self.value = weights()
        self.residual = weights()
        self.heads = heads
        self.compute_dtype = jnp.dtype(compute_dtype)

    def __call__(self, fields: jax.Array) -> jax.Array:
        """Maps ``[batch, fields, inputs]`` to ``[batch, fields, outputs]``."""
        # As rows of one matrix: on CPU, products of three axes cost transposed copies.
        x = fields.reshape(-1, fields.shape[-1])

        def projected(w: nnx.Param) -> jax.Array:
            product = matmul(x, w[...], self.compute_dtype)
            return product.reshape(*fields.shape[:2], self.heads, -1)

        query, key, value = map(projected, (self.query, self.key, self.value))
        attention = nnx.softmax(jnp.einsum("bmhd,bkhd->bhmk", query, key), axis=-1)
        joined = jnp.einsum("bhmk,bkhd->bmhd", attention, value)
        joined = nnx.relu(joined + projected(self.residual))
        return joined.reshape(*fields.shape[:2], -1)


class AutoInt(JoinedModel):
    """AutoInt: interacting layers over fields, and one linear layer over all of them.

    A field is a feature's embedding, or a dense value times a learned vector. With
    ``deep``, the model adds the logit of an MLP over the fields (AutoInt+). Paper:
    https://arxiv.org/abs/1810.11921; the defaults are its three layers of two heads,
    64 wide as in its code.

    Args:
      attention: width of each interacting layer, over all its heads.
      heads: number of heads of each layer.
      deep: widths of the MLP, each layer with ReLU; a linear logit follows. () means no
        MLP.

    Raises:
      ValueError: if a feature is a sequence, dims differ, or heads do not divide a
        width.
    """

    def __init__(
        self,
        embedding_shapes: Shapes,
        dense_features: int,
        attention: Annotated[Widths, Field(min_length=1)] = (64, 64, 64),
        heads: PositiveInt = 2,
        deep: Widths = (),
        compute_dtype: ComputeDtype = "float32",
        dropout: Dropout = 0.0,
        batch_norm: BatchNorm = False,
        *,
        rngs: nnx.Rngs,
    ):
        self.dims = pooled_dims(embedding_shapes)
        check_equal_dims(self.dims, 0, "as all go through the same attention")
        self.compute_dtype = jnp.dtype(compute_dtype)
        width = self.dims[0][1]
        self.beside = dense_features * width
        for outputs in attention:
            if outputs % heads:
                raise ValueError(
                    f"attention has {outputs}, must be a multiple of the {heads} heads"
                )
        shared = {"compute_dtype": compute_dtype, "rngs": rngs}
        init = nnx.initializers.normal(_VECTOR_STD)
        self.dense_vectors = nnx.Param(init(rngs.params(), (dense_features, width)))
        fields = dense_features + len(self.dims)
        mlp = {**shared, "dropout": dropout, "batch_norm": batch_norm}
        self.deep = (
            MLP(fields * width, (*deep, 1), last_relu=False, **mlp) if deep else None
        )
        layers = []
        for outputs in attention:
            layers.append(InteractingLayer(width, outputs, heads, **shared))
            width = outputs
        self.attention = nnx.List(layers)
        self.top = Linear(fields * width, 1, **shared)

    def __call__(self, dense: jax.Array, embeddings: Embeddings | Joined) -> jax.Array:
        """Returns logits; see ``interface`` for shapes and errors."""
        if self.beside:
            dense = dense[:, :, None] * self.dense_vectors[...][None]
            dense = dense.reshape(dense.shape[0], self.beside)
        fields = side_by_side(dense, embeddings, self.dims, self.compute_dtype)
        fields = x = fields.reshape(dense.shape[0], -1, self.dims[0][1])
        for layer in self.attention:
            x = layer(x)
        logits = self.top(x.reshape(x.shape[0], -1))
        if self.deep is not None:
            logits = logits + self.deep(fields.reshape(x.shape[0], -1))
        return logits[:, 0]
