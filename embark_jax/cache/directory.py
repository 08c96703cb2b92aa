"""The directory of a key index leads from keys to slots.

It consists of buckets. A key has two buckets, by two hashes, and lies in one of their
ways, so that ``locate`` gathers two buckets and compares. There are twice as many ways
as slots; a key goes to the emptier of its buckets, and so finds room unless it is very
unlucky: then a larger directory is made.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from embark_kernels import sort_positions
from jax import lax

from embark_jax.embedding.keys import hash_words

WAYS = 8
CHOICES = 2
WAYS_PER_SLOT = 2
EMPTY = np.uint32(0xFFFFFFFF)
"""Value of all words of an empty way; a key may have it, too."""
NO_SLOT = -1
"""Slot of a way that holds no key."""
SHARE_OF_FEW = 8
LEAST_OF_FEW = 256


def default_buckets(slots: int) -> int:
    """Returns the number of buckets of a directory for these slots."""
    return max(2, -(-WAYS_PER_SLOT * slots // WAYS))


def most_of_few(n: int) -> int:
    """Returns how many of n keys are few: these are sorted in arrays of their own."""
    return min(n, max(LEAST_OF_FEW, -(-n // SHARE_OF_FEW)))


def insert(
    way_keys: jax.Array,
    way_slots: jax.Array,
    keys: jax.Array,
    slot: jax.Array,
    wanted: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Puts new keys into the directory, each into the emptier of its buckets; those
    that come too late there go into what is left in the next round.

    Returns:
      The directory, and the ``[1]`` int32 number of keys that found no room.
    """
    buckets, choices = way_keys.shape[0], _buckets(keys, way_keys.shape[0])

    def insert_some(carried):
        way_keys, way_slots, left, _ = carried
        free = way_slots[choices] == NO_SLOT  # [n, CHOICES, WAYS]
        choice = jnp.argmax(free.sum(axis=-1), axis=1)[:, None]
        bucket = jnp.take_along_axis(choices, choice, axis=1)[:, 0]
        free = jnp.take_along_axis(free, choice[:, :, None], axis=1)[:, 0]
        rank = _rank_in_bucket(jnp.where(left, bucket, buckets), buckets)
        # The r-th key of a bucket takes its r-th free way.
        way_of_key = free & (jnp.cumsum(free, axis=1) - 1 == rank[:, None])
        placed = left & way_of_key.any(axis=1)
        bucket, way = jnp.where(placed, bucket, buckets), jnp.argmax(way_of_key, axis=1)
        way_keys = way_keys.at[bucket, way].set(keys, mode="drop")
        way_slots = way_slots.at[bucket, way].set(slot, mode="drop")
        return way_keys, way_slots, left & ~placed, placed.any()

    carried = way_keys, way_slots, wanted, jnp.array(True)
    way_keys, way_slots, left, _ = lax.while_loop(
        lambda carried: carried[2].any() & carried[3], insert_some, carried
    )
    return way_keys, way_slots, left.sum(dtype=jnp.int32)[None]


def replace(
    way_keys: jax.Array,
    way_slots: jax.Array,
    outgoing: jax.Array,
    leaves: jax.Array,
    incoming: jax.Array,
    comes: jax.Array,
    slot: jax.Array,
    count: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Removes keys and inserts others, a few at a time: most batches of a large table
    bring few new keys.

    Args:
      way_keys, way_slots: the directory.
      outgoing, leaves: ``[n, words]`` keys, and ``[n]`` bool which of them leave.
      incoming, comes: ``[n, words]`` keys, and ``[n]`` bool which of them come.
      slot: ``[n]`` int32 slots that they get.
      count: ``[1]`` int32: only the first keys count.

    Returns:
      As ``insert``.
    """
    n, buckets = len(slot), len(way_keys)
    size = most_of_few(n)

    def replace_some(carried):
        way_keys, way_slots, homeless, first = carried
        begin = jnp.minimum(first, n - size)
        some_outgoing, some_leave, some_incoming, some_come, some_slots = (
            lax.dynamic_slice_in_dim(array, begin, size)
            for array in (outgoing, leaves, incoming, comes, slot)
        )
        index = begin + jnp.arange(size, dtype=jnp.int32)
        wanted = (index >= first) & (index < count)
        bucket, way, held = locate(way_keys, way_slots, some_outgoing)
        bucket = jnp.where(held & some_leave & wanted, bucket, buckets)
        way_keys = way_keys.at[bucket, way].set(EMPTY, mode="drop")
        way_slots = way_slots.at[bucket, way].set(NO_SLOT, mode="drop")
        way_keys, way_slots, left = insert(
            way_keys, way_slots, some_incoming, some_slots, some_come & wanted
        )
        return way_keys, way_slots, homeless + left, first + size

    carried = way_keys, way_slots, jnp.zeros(1, jnp.int32), jnp.zeros((), jnp.int32)
    return lax.while_loop(lambda carried: carried[3] < count[0], replace_some, carried)[
        :3
    ]


def _rank_in_bucket(bucket: jax.Array, buckets: int) -> jax.Array:
    """Returns ``[n]``: how many before each element have its bucket."""
    sorted_bucket, order = sort_positions(bucket.astype(jnp.uint32), buckets + 1)
    index_in_order = jnp.arange(len(bucket), dtype=jnp.int32)
    is_first = jnp.concatenate(
        [jnp.ones(1, bool), sorted_bucket[1:] != sorted_bucket[:-1]]
    )
    rank = index_in_order - lax.cummax(jnp.where(is_first, index_in_order, 0))
    return jnp.zeros_like(rank).at[order].set(rank, unique_indices=True)


def locate(
    way_keys: jax.Array, way_slots: jax.Array, keys: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns ``(bucket, way, whether it is there)`` of keys."""
    choices = _buckets(keys, way_keys.shape[0])
    equal = (way_keys[choices] == keys[:, None, None]).all(axis=-1)
    # Few batches have the one key that an empty way has, too.
    equal = lax.cond(
        (keys == EMPTY).all(axis=1).any(),
        lambda equal: equal & (way_slots[choices] != NO_SLOT),
        lambda equal: equal,
        equal,
    )
    equal = equal.reshape(len(keys), -1)
    first = jnp.argmax(equal, axis=1)
    choice, way = jnp.divmod(first, WAYS)
    bucket = jnp.take_along_axis(choices, choice[:, None], axis=1)[:, 0]
    return bucket, way, equal.any(axis=1)


def _buckets(keys: jax.Array, buckets: int) -> jax.Array:
    """Returns the different buckets of each key, ``[n, CHOICES]`` int32."""
    first, step = (hash_words(keys, seed) for seed in (0x9E3779B9, 0x85EBCA6B))
    first = first % np.uint32(buckets)
    second = (first + 1 + step % np.uint32(buckets - 1)) % np.uint32(buckets)
    return jnp.stack([first, second], axis=1).astype(jnp.int32)
