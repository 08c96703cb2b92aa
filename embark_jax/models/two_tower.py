"""Two towers: a user's vector and an item's, trained by a softmax over the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.typing import DTypeLike

from embark_jax.models.function import ModelWithLoss, Samples
from embark_jax.models.interface import in_order, pooled_dims
from embark_jax.models.layers import MLP

COUNTERS = 2**18
"""Items share them by a hash where there are more."""
_GOLDEN = 0x9E3779B1  # 2^32 / φ: Knuth's multiplicative hash
_NEVER = -1e9
_LEAST_SQUARED_NORM = 1e-12


class Counts(nnx.Variable):
    """How often items were met: state that no gradient is taken by."""


class TwoTower(ModelWithLoss):
    """Retrieval: a logit is the cosine of the two vectors, over a temperature.

    Each positive sample is to tell its item from those of all other samples of the
    batch, which are drawn as often as they are popular; a logit is therefore lessened
    by the log of how often its item is met. Items that are in a batch twice are no
    negatives of each other. Labels are rewards: samples of label 0 teach nothing, but
    that their item is another's negative. Paper:
    https://doi.org/10.1145/3298689.3346996, whose frequencies are estimated from steps
    between occurrences; here they are counted. With ``train.micro_batches`` the
    negatives are those of the micro-batch.

    Args:
      embedding_shapes: each feature's output shape a sample, ``(dim,)``; dims may
        differ. Features are taken sorted by name.
      dense_features: number of dense features, which the user's tower takes.
      items: features of the item; the first one, of one id a sample, says which item it
        is. All others are the user's.
      tower: widths of both MLPs, each layer with ReLU but the last.
      temperature: that cosines are divided by.
      compute_dtype: of the matrix products' operands; parameters and sums are float32.
      dropout, batch_norm: of the MLPs, as ``layers.MLP`` has them.
      rngs: its ``params`` stream draws the weights.

    Raises:
      ValueError: if a feature is a sequence, or a tower has none.
    """

    def __init__(
        self,
        embedding_shapes: Mapping[str, tuple[int, ...]],
        dense_features: int,
        items: Sequence[str],
        tower: Sequence[int] = (128, 64),
        temperature: float = 0.05,
        compute_dtype: DTypeLike = jnp.float32,
        dropout: float = 0.0,
        batch_norm: bool = False,
        *,
        rngs: nnx.Rngs,
    ):
        self.dims = pooled_dims(embedding_shapes)
        if unknown := sorted(set(items) - embedding_shapes.keys()):
            raise ValueError(f"items has {unknown[0]!r}, which is no feature")
        self.item_features = tuple(sorted(items))
        self.user_features = tuple(n for n, _ in self.dims if n not in items)
        if not items or not self.user_features:
            raise ValueError("items must be some of the features, and not all of them")
        mlp = {"compute_dtype": compute_dtype, "rngs": rngs}
        mlp |= {"dropout": dropout, "batch_norm": batch_norm, "last_relu": False}
        dims = dict(self.dims)
        width = dense_features + sum(dims[name] for name in self.user_features)
        self.user_tower = MLP(width, tower, **mlp)
        width = sum(dims[name] for name in self.item_features)
        self.item_tower = MLP(width, tower, **mlp)
        self.item, self.temperature = items[0], temperature
        self.counts = Counts(jnp.zeros(COUNTERS, jnp.int32))

    def __call__(
        self, dense: jax.Array, embeddings: Mapping[str, jax.Array]
    ) -> jax.Array:
        """Logits of each sample's user and item; see ``interface``."""
        in_order(embeddings, self.dims)
        users, items = self.users(dense, embeddings), self.items(dense, embeddings)
        return jnp.sum(users * items, axis=1) / self.temperature

    def users(self, dense: jax.Array, embeddings: Mapping[str, jax.Array]) -> jax.Array:
        """``[batch, tower[-1]]`` vectors of length one."""
        inputs = [dense, *(embeddings[name] for name in self.user_features)]
        return _unit(self.user_tower(jnp.concatenate(inputs, axis=1)))

    def items(self, dense: jax.Array, embeddings: Mapping[str, jax.Array]) -> jax.Array:
        """The same of the items."""
        inputs = [embeddings[name] for name in self.item_features]
        return _unit(self.item_tower(jnp.concatenate(inputs, axis=1)))

    def loss(
        self, embeddings: Mapping[str, jax.Array], batch: Samples
    ) -> tuple[jax.Array, jax.Array]:
        """Softmax cross entropy of each positive sample, ``[batch]``; and logits."""
        users = self.users(batch.dense, embeddings)
        items = self.items(batch.dense, embeddings)
        ids = batch.ids[self.item][:, 0]
        hashed = ids.astype(jnp.uint32) * jnp.uint32(_GOLDEN)
        counter = (hashed >> jnp.uint32(14)).astype(jnp.int32)  # the upper 18 bits
        counts = self.counts[...].at[counter].add(1)
        self.counts[...] = counts
        frequency = counts[counter].astype(jnp.float32)
        scores = users @ items.T / self.temperature
        corrected = scores - jnp.log(frequency)[None]
        numbers = jnp.arange(len(ids))
        again = (ids[:, None] == ids[None]) & (numbers[:, None] != numbers[None])
        corrected = jnp.where(again, _NEVER, corrected)
        losses = optax.softmax_cross_entropy_with_integer_labels(corrected, numbers)
        return losses * batch.labels, jnp.sum(users * items, axis=1) / self.temperature


def _unit(x: jax.Array) -> jax.Array:
    squared = jnp.sum(x**2, axis=1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(squared, _LEAST_SQUARED_NORM))
