"""A model to copy: a bilinear term between two features beside a linear model."""

import jax.numpy as jnp
from flax import nnx


class Bilinear(nnx.Module):
    """``user · W · item`` plus a linear model of everything else.

    Args:
      embedding_shapes: each feature's output shape per sample.
      dense_features: number of dense features.
      left, right: names of two pooled features, of any dims.
      rngs: its ``params`` stream draws the weights.
    """

    def __init__(self, embedding_shapes, dense_features, left, right, *, rngs):
        self.pair = left, right
        shape = embedding_shapes[left] + embedding_shapes[right]
        self.w = nnx.Param(0.1 * rngs.params.normal(shape))
        self.others = sorted(embedding_shapes.keys() - {left, right})
        width = dense_features + sum(embedding_shapes[n][-1] for n in self.others)
        self.linear = nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, dense, embeddings):
        """``[batch, dense_features]`` and ``{feature: [batch, dim]}`` to ``[batch]``
        log odds."""
        left, right = (embeddings[name] for name in self.pair)
        bilinear = jnp.einsum("bi,ij,bj->b", left, self.w[...], right)
        rest = jnp.concatenate([dense, *(embeddings[n] for n in self.others)], axis=1)
        return bilinear + self.linear(rest)[:, 0]
