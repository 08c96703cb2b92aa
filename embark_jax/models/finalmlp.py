"""FinalMLP: two gated MLPs in parallel, fused."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from pydantic import PositiveInt

from embark_jax.models.interface import Embeddings, Shapes, in_order, pooled_dims
from embark_jax.models.layers import MLP, Linear, matmul, xavier_normal
from embark_jax.models.options import BatchNorm, ComputeDtype, Dropout, Features, Widths


class FeatureGate(nnx.Module):
    """Weighs all inputs by ``2 σ(MLP(context))`` (section 3.2 of the paper).

    Args:
      context: width of the gate's input; 0 takes a learned vector, as wide as the
        inputs, instead.
      hidden: widths of the MLP's hidden layers.
      width: width of the inputs.
      compute_dtype: dtype of the matrix products' operands.
      rngs: its ``params`` stream draws the weights.
    """

    def __init__(
        self,
        context: int,
        hidden: Sequence[int],
        width: int,
        *,
        compute_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        self.context = None if context else nnx.Param(jnp.zeros((1, width)))
        self.mlp = MLP(
            context or width,
            (*hidden, width),
            last_relu=False,
            compute_dtype=compute_dtype,
            rngs=rngs,
        )

    def __call__(self, context: jax.Array | None, x: jax.Array) -> jax.Array:
        if self.context is not None:
            context = self.context[...]
        assert context is not None
        return 2 * nnx.sigmoid(self.mlp(context)) * x


class FinalMLP(nnx.Module):
    """FinalMLP: a two-stream MLP with feature gates and multi-head bilinear fusion.

    Each stream is an MLP over all features, with its own gate and context. With outputs
    ``o1`` and ``o2``, cut into heads, the logit is ``b + w1·o1 + w2·o2 + Σ_h o1_h W_h
    o2_h``. Paper: https://arxiv.org/abs/2304.00902; the default is its model without
    gates, which ``gate`` and the contexts add.

    Args:
      stream1, stream2: widths of the two MLPs, each layer with ReLU.
      heads: number of heads of the fusion.
      gate: widths of the hidden layers of each gate; () means no gates.
      context1, context2: features that the gates read; () means a learned vector.

    Raises:
      ValueError: if a feature is a sequence, a context names no feature, or heads do
        not divide the last width of a stream.
    """

    def __init__(
        self,
        embedding_shapes: Shapes,
        dense_features: int,
        stream1: Widths = (400, 400, 400),
        stream2: Widths = (400, 400, 400),
        heads: PositiveInt = 1,
        gate: Widths = (),
        context1: Features = (),
        context2: Features = (),
        compute_dtype: ComputeDtype = "float32",
        dropout: Dropout = 0.0,
        batch_norm: BatchNorm = False,
        *,
        rngs: nnx.Rngs,
    ):
        self.dims = pooled_dims(embedding_shapes)
        dims = dict(self.dims)
        width = dense_features + sum(dims.values())
        problems = [
            f"{name} ends in {widths[-1:]}, must end in a multiple of {heads} heads"
            for name, widths in (("stream1", stream1), ("stream2", stream2))
            if not widths or widths[-1] % heads
        ]
        contexts = tuple(context1), tuple(context2)
        problems += [
            f"context{number} has {name!r}, must be a feature"
            for number, names in enumerate(contexts, 1)
            for name in names
            if name not in dims
        ]
        if problems:
            raise ValueError("; ".join(problems))
        shared = {"compute_dtype": compute_dtype, "rngs": rngs}
        mlp = {**shared, "dropout": dropout, "batch_norm": batch_norm}
        self.contexts = contexts
        self.gates = nnx.List(
            FeatureGate(sum(dims[name] for name in names), gate, width, **shared)
            for names in contexts
            if gate
        )
        self.streams = nnx.List(
            MLP(width, widths, last_relu=True, **mlp) for widths in (stream1, stream2)
        )
        self.linear = Linear(stream1[-1] + stream2[-1], 1, **shared)
        shape = heads, stream1[-1] // heads, stream2[-1] // heads
        self.bilinear = nnx.Param(xavier_normal(rngs.params(), shape))
        self.compute_dtype = compute_dtype

    def __call__(self, dense: jax.Array, embeddings: Embeddings) -> jax.Array:
        """Returns logits; see ``interface`` for shapes and errors."""
        x = jnp.concatenate([dense, *in_order(embeddings, self.dims)], axis=1)
        outputs = []
        for number, stream in enumerate(self.streams):
            inputs = x
            if self.gates:
                names = self.contexts[number]
                context = [embeddings[name] for name in names]
                inputs = self.gates[number](
                    jnp.concatenate(context, axis=1) if context else None, x
                )
            outputs.append(stream(inputs))
        first, second = outputs
        logits = self.linear(jnp.concatenate(outputs, axis=1))[:, 0]
        w = self.bilinear[...]
        for head in range(len(w)):
            _, rows, columns = w.shape
            left = first[:, head * rows : (head + 1) * rows]
            right = second[:, head * columns : (head + 1) * columns]
            logits += jnp.sum(matmul(left, w[head], self.compute_dtype) * right, axis=1)
        return logits
