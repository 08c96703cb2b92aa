"""Models that retrieve items, trained by a softmax over the items of a batch."""

from __future__ import annotations

import abc
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from embark_jax.models.function import ModelWithLoss, Samples
from embark_jax.models.interface import check_embeddings

COUNTERS = 2**18
"""Number of counters; if there are more items, they share counters by a hash."""
_GOLDEN = 0x9E3779B1  # 2^32 / φ: Knuth's multiplicative hash
_NEVER = -1e9
_LEAST_SQUARED_NORM = 1e-12


class Counts(nnx.Variable):
    """Counts how often items occurred: state without a gradient."""


class RetrievalModel(ModelWithLoss):
    """A logit is the cosine of a user's and an item's vector, over a temperature.

    Each positive sample learns to tell its item from the items of all other samples of
    the batch. Popular items occur more often in a batch, so the log of an item's
    frequency is subtracted from its logit. Equal items of a batch are no negatives of
    each other. Labels are rewards: a sample of label 0 only provides its item as a
    negative. Paper: https://doi.org/10.1145/3298689.3346996, which estimates
    frequencies from the steps between occurrences; here they are counted. With
    ``train.micro_batches`` the negatives are those of the micro-batch.

    Args:
      embedding_shapes: each feature's embedding shape per sample.
      item: feature, of one id a sample, that says which item it is.
      temperature: divides the cosines.
    """

    def __init__(
        self,
        embedding_shapes: Mapping[str, tuple[int, ...]],
        item: str,
        temperature: float,
    ):
        self.shapes = tuple(sorted(embedding_shapes.items()))
        self.item, self.temperature = item, temperature
        self.counts = Counts(jnp.zeros(COUNTERS, jnp.int32))

    @abc.abstractmethod
    def users(self, dense: jax.Array, embeddings: Mapping[str, jax.Array]) -> jax.Array:
        """Returns the users' vectors, ``[batch, dim]``, of length one."""

    @abc.abstractmethod
    def items(self, dense: jax.Array, embeddings: Mapping[str, jax.Array]) -> jax.Array:
        """Returns the items' vectors, ``[batch, dim]``, of length one."""

    def __call__(
        self, dense: jax.Array, embeddings: Mapping[str, jax.Array]
    ) -> jax.Array:
        """Returns the logit of each sample's user and item; see ``interface``."""
        check_embeddings(embeddings, self.shapes)
        users, items = self.users(dense, embeddings), self.items(dense, embeddings)
        return jnp.sum(users * items, axis=1) / self.temperature

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


def unit(x: jax.Array) -> jax.Array:
    """Returns rows of length one; a row of zeros stays as it is."""
    squared = jnp.sum(x**2, axis=1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(squared, _LEAST_SQUARED_NORM))
