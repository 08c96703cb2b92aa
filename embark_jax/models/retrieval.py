"""Models that retrieve items, trained by a softmax over sampled items."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from embark_jax.models.function import ModelWithLoss, Samples
from embark_jax.models.interface import Embeddings, Shapes, check_embeddings, unmasked
from embark_jax.plans.tables import PADDING_ID, UNIFORM_NEGATIVES

COUNTERS = 2**18
"""Number of counters; if there are more items, they share counters by a hash."""
POSITIONS_AT_ONCE = 8
"""Positions of a sample whose scores are in memory at once: 1 GiB of 2,048 samples of a
device and 16,384 negatives, where those of 200 positions would be 25 GiB."""
_GOLDEN = 0x9E3779B1  # 2^32 / φ: Knuth's multiplicative hash
_NEVER = -1e9


class Counts(nnx.Variable):
    """Counts how often items occurred: state without a gradient."""


class Queries(NamedTuple):
    """Vectors of users, and the item that each should find.

    Attributes:
      users, items: ``[groups, positions, dim]`` vectors of length one; samples, or the
        devices that hold them, are groups.
      ids: ``[groups, positions]`` ids of the items.
      sample_losses: gives each sample's loss, ``[batch]``, of those of the queries,
        ``[groups, positions]``.
      latest: ``[batch, dim]`` vector of each sample's user in the end.
    """

    users: jax.Array
    items: jax.Array
    ids: jax.Array
    sample_losses: Callable[[jax.Array], jax.Array]
    latest: jax.Array


def one_each(
    users: jax.Array, items: jax.Array, ids: jax.Array, weights: jax.Array
) -> Queries:
    """Returns one query of each sample: vectors ``[batch, dim]``, ids and factors of
    the losses ``[batch]``."""
    with wide(ids):
        ids = ids[:, None]
    return Queries(
        users[:, None],
        items[:, None],
        ids,
        lambda losses: losses[:, 0] * weights,
        users,
    )


class RetrievalModel(ModelWithLoss):
    """A logit is the cosine of a user's and an item's vector, over a temperature.

    Each query learns to tell its item from sampled ones: the items of all samples of
    the batch, and the ids of the feature ``uniform_negatives``, if there is one, which
    all samples of the batch share. An item is no negative of itself. From a logit the
    log of the number of times is subtracted that the item is expected among them (the
    logQ correction, https://doi.org/10.1145/3298689.3346996): by the share of samples
    that had it so far, which are counted, and by the same number for all items of the
    uniform ones (https://doi.org/10.1145/3366424.3386195). Labels are rewards: a sample
    of label 0 only provides its item as a negative. With ``train.micro_batches`` the
    negatives are those of the micro-batch.

    Args:
      embedding_shapes: each feature's embedding shape per sample.
      item: feature, of one id a sample, that says which item it is.
      item_features: features of which an item's vector is made.
      temperature: divides the cosines.
      in_batch: whether the items of the batch are negatives.
      uniform_negatives: number of ids of a sample's feature ``uniform_negatives``; 0 if
        there is no such feature.
      catalog: number of items that these are drawn from.

    Raises:
      ValueError: if there are no negatives of either kind, or uniform ones whose
        vectors need more than their ids.
    """

    def __init__(
        self,
        embedding_shapes: Shapes,
        item: str,
        item_features: Sequence[str],
        temperature: float,
        in_batch: bool,
        uniform_negatives: int,
        catalog: int,
    ):
        count, *_ = embedding_shapes.get(UNIFORM_NEGATIVES, (0,))
        if count != uniform_negatives:
            raise ValueError(
                f"uniform_negatives is {uniform_negatives}, but the feature of that "
                f"name has {count} ids a sample"
            )
        self.shapes = tuple(sorted(embedding_shapes.items()))
        self.item, self.item_features = item, tuple(sorted(item_features))
        self.temperature = temperature
        self.in_batch, self.catalog = in_batch, catalog
        self.uniform = uniform_negatives > 0
        if self.uniform and self.item_features != (item,):
            raise ValueError(
                f"uniform_negatives is {uniform_negatives}, must be 0: an item's "
                f"vector is made of {', '.join(self.item_features)}, of which items "
                f"that are drawn at random have {item!r} alone"
            )
        if not (in_batch or self.uniform):
            raise ValueError(
                "in_batch is false and there are no uniform negatives: an item has "
                "nothing to be told from; set uniform_negatives"
            )
        self.counts = Counts(jnp.zeros(COUNTERS, jnp.int32))

    @abc.abstractmethod
    def users(self, dense: jax.Array, embeddings: Embeddings) -> jax.Array:
        """Returns the users' vectors, ``[batch, dim]``, of length one."""

    @abc.abstractmethod
    def items(self, dense: jax.Array, embeddings: Embeddings) -> jax.Array:
        """Returns the items' vectors, ``[batch, dim]``, of length one."""

    @abc.abstractmethod
    def queries(self, embeddings: Embeddings, batch: Samples) -> Queries:
        """Returns the queries that training answers."""

    def __call__(self, dense: jax.Array, embeddings: Embeddings) -> jax.Array:
        """Returns the logit of each sample's user and item; see ``interface``."""
        check_embeddings(unmasked(embeddings)[0], self.shapes)
        users, items = self.users(dense, embeddings), self.items(dense, embeddings)
        return jnp.sum(users * items, axis=1) / self.temperature

    def loss(
        self, embeddings: Embeddings, batch: Samples
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the softmax cross entropy of each sample's queries, and logits."""
        users, targets, target_ids, sample_losses, latest = self.queries(
            embeddings, batch
        )
        items = self.items(batch.dense, embeddings)
        ids = batch.ids[self.item][:, 0]
        negatives = [(items, ids)] if self.in_batch else []
        uniform_samples = 0
        if self.uniform:
            rows = unmasked(embeddings)[0][UNIFORM_NEGATIVES]
            rows = rows.reshape(-1, rows.shape[-1])
            vectors = self.items(jnp.zeros((len(rows), 0)), {self.item: rows})
            negatives.append((vectors, batch.ids[UNIFORM_NEGATIVES].reshape(-1)))
            uniform_samples = len(rows)
        counts = self.counts[...].at[_counter(ids)].add(1)
        self.counts[...] = counts
        in_batch_samples = len(ids) if self.in_batch else 0
        by_count = in_batch_samples / counts.sum(dtype=jnp.float32)

        def log_expected(ids: jax.Array) -> jax.Array:
            count = jnp.maximum(counts[_counter(ids)], 1).astype(jnp.float32)
            return jnp.log(by_count * count + uniform_samples / self.catalog)

        own = jnp.sum(users * targets, axis=-1) / self.temperature
        own = own - log_expected(target_ids)

        @jax.checkpoint
        def total_at(queries):
            """Returns the log of the sum of exponentials, of a position's queries."""
            users, target_ids, total = queries
            for vectors, negative_ids in negatives:
                scores = jnp.einsum("bd,nd->bn", users, vectors) / self.temperature
                scores = scores - log_expected(negative_ids)[None]
                with wide(negative_ids):
                    is_own = negative_ids[None] == target_ids[:, None]
                    no_negative = is_own | (negative_ids[None] == PADDING_ID)
                # Of jnp.where's constant there would be an array outside of the loop.
                scores = scores + _NEVER * no_negative.astype(jnp.float32)
                total = jnp.logaddexp(total, jax.nn.logsumexp(scores, axis=-1))
            return total

        queries = jax.tree.map(
            lambda array: jnp.moveaxis(array, 1, 0), (users, target_ids, own)
        )
        at_once = POSITIONS_AT_ONCE * len(latest) // len(users)
        total = lax.map(total_at, queries, batch_size=at_once).T
        logits = jnp.sum(latest * items, axis=1) / self.temperature
        return sample_losses(total - own), logits


def without_negatives(embedding_shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the features that are of a sample alone."""
    return {n: s for n, s in embedding_shapes.items() if n != UNIFORM_NEGATIVES}


def wide(ids: jax.Array) -> AbstractContextManager:
    """Returns a context in which ids keep all of their bits, 32 or 64."""
    return jax.enable_x64(ids.dtype == jnp.int64)


def _counter(ids: jax.Array) -> jax.Array:
    """Returns the number of each item's counter."""
    words = ids.astype(jnp.uint32)
    if ids.dtype == jnp.int64:
        with wide(ids):
            words ^= (ids >> 32).astype(jnp.uint32) * jnp.uint32(_GOLDEN)
    hashed = words * jnp.uint32(_GOLDEN)
    return (hashed >> jnp.uint32(14)).astype(jnp.int32)  # the upper 18 bits
