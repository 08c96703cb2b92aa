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
"""Number of counters; if there are more items, they share counters by a hash."""
_GOLDEN = 0x9E3779B1  # 2^32 / φ: Knuth's multiplicative hash
_NEVER = -1e9
_LEAST_SQUARED_NORM = 1e-12


class Counts(nnx.Variable):
    """Counts how often items occurred: state without a gradient."""


class TwoTower(ModelWithLoss):
    """Retrieval: a logit is the cosine of the two vectors, divided by a temperature.

    Each positive sample learns to tell its item from the items of all other samples of
    the batch. Popular items occur more often in a batch, so the log of an item's
    frequency is subtracted from its logit. Equal items of a batch are no negatives of
    each other. Labels are rewards: a sample of label 0 only provides its item as a
    negative. Paper: https://doi.org/10.1145/3298689.3346996, which estimates
    frequencies from the steps between occurrences; here they are counted. With
    ``train.micro_batches`` the negatives are those of the micro-batch.

    Args:
      embedding_shapes: each feature's embedding shape per sample, ``(dim,)``; dims may
        differ. Features are taken sorted by name.
      dense_features: number of dense features, which the user's tower takes.
      items: features of the item; the first one, with one id per sample, identifies
        the item. All others belong to the user.
      tower: widths of both MLPs; each layer but the last has ReLU.
      temperature: divides the cosines.
      compute_dtype: dtype of matrix operands; parameters and sums are float32.
      dropout, batch_norm: see ``layers.MLP``; they apply to all MLPs.
      rngs: its ``params`` stream draws the weights.

    Raises:
      ValueError: if a feature is a sequence, or a tower has no feature.
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
            raise ValueError(f"items has {unknown[0]!r}, must be a feature")
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
        """Returns the logit of each sample's user and item; see ``interface``."""
        in_order(embeddings, self.dims)
        users, items = self.users(dense, embeddings), self.items(dense, embeddings)
        return jnp.sum(users * items, axis=1) / self.temperature

    def users(self, dense: jax.Array, embeddings: Mapping[str, jax.Array]) -> jax.Array:
        """Returns the users' vectors, ``[batch, tower[-1]]``, of length one."""
        inputs = [dense, *(embeddings[name] for name in self.user_features)]
        return _unit(self.user_tower(jnp.concatenate(inputs, axis=1)))

    def items(self, dense: jax.Array, embeddings: Mapping[str, jax.Array]) -> jax.Array:
        """Returns the items' vectors, ``[batch, tower[-1]]``, of length one."""
        inputs = [embeddings[name] for name in self.item_features]
        return _unit(self.item_tower(jnp.concatenate(inputs, axis=1)))

    def loss(
        self, embeddings: Mapping[str, jax.Array], batch: Samples
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the softmax cross entropy of each positive sample, and logits."""
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
