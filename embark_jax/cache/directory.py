"""The directory of a key index leads from keys to slots.

It consists of buckets. A key has two buckets, by two hashes, and lies in one of their
ways, so that ``locate`` gathers two buckets and compares. There are twice as many ways
as slots; a key goes to the emptier of its buckets, and so finds a way unless it is very
unlucky: then a larger directory is made.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from embark_kernels import begins_segment, sort_positions
from jax import lax

from embark_jax.embedding.keys import WORDS, hash_words

WAYS = 8
CHOICES = 2
WAYS_PER_SLOT = 2
EMPTY = np.uint32(0xFFFFFFFF)
"""Both words of an empty way. They are those of the id -1, which is padding."""
EMPTY_WAY = -1
"""What a way that holds no key has as its slot."""
SHARE_OF_FEW = 8
LEAST_OF_FEW = 256


class Directory(NamedTuple):
    """The ways of all buckets.

    Attributes:
      keys: ``[buckets, WAYS, 2]`` uint32 key of each way; ``EMPTY`` where there is
        none.
      slots: ``[buckets, WAYS]`` int32 slot of each; ``EMPTY_WAY`` where there is none.
    """

    keys: jax.Array
    slots: jax.Array


def default_buckets(slots: int) -> int:
    """Returns the number of buckets of a directory for these slots."""
    return max(2, -(-WAYS_PER_SLOT * slots // WAYS))


def empty_directory(buckets: int) -> Directory:
    """Returns a directory without keys."""
    return Directory(
        jnp.full((buckets, WAYS, WORDS), EMPTY),
        jnp.full((buckets, WAYS), EMPTY_WAY, jnp.int32),
    )


def most_of_few(n: int) -> int:
    """Returns how many of n keys are few: these are sorted in arrays of their own."""
    return min(n, max(LEAST_OF_FEW, -(-n // SHARE_OF_FEW)))


def insert(
    directory: Directory, keys: jax.Array, slot: jax.Array, wanted: jax.Array
) -> tuple[Directory, jax.Array]:
    """Puts new keys into the directory, each into the emptier of its buckets; those
    that come too late there go into what is left in the next round.

    Returns:
      The directory, and the ``[1]`` int32 number of keys that found no way.
    """
    buckets = len(directory.keys)
    choices = _buckets(keys, buckets)

    def insert_some(carried):
        directory, left, _ = carried
        free = directory.slots[choices] == EMPTY_WAY  # [n, CHOICES, WAYS]
        choice = jnp.argmax(free.sum(axis=-1), axis=1)[:, None]
        bucket = jnp.take_along_axis(choices, choice, axis=1)[:, 0]
        free = jnp.take_along_axis(free, choice[:, :, None], axis=1)[:, 0]
        rank = _rank_in_bucket(jnp.where(left, bucket, buckets), buckets)
        # The r-th key of a bucket takes its r-th free way.
        way_of_key = free & (jnp.cumsum(free, axis=1) - 1 == rank[:, None])
        placed = left & way_of_key.any(axis=1)
        way = jnp.where(placed, bucket, buckets), jnp.argmax(way_of_key, axis=1)
        directory = Directory(
            directory.keys.at[way].set(keys, mode="drop"),
            directory.slots.at[way].set(slot, mode="drop"),
        )
        return directory, left & ~placed, placed.any()

    directory, left, _ = lax.while_loop(
        lambda carried: carried[1].any() & carried[2],
        insert_some,
        (directory, wanted, jnp.array(True)),
    )
    return directory, left.sum(dtype=jnp.int32)[None]


def replace(
    directory: Directory,
    outgoing: jax.Array,
    leaves: jax.Array,
    incoming: jax.Array,
    comes: jax.Array,
    slot: jax.Array,
    count: jax.Array,
) -> tuple[Directory, jax.Array]:
    """Removes keys and inserts others, a few at a time: most batches of a large table
    bring few new keys.

    Args:
      directory: the directory.
      outgoing, leaves: ``[n, 2]`` keys, and ``[n]`` bool which of them leave.
      incoming, comes: ``[n, 2]`` keys, and ``[n]`` bool which of them come.
      slot: ``[n]`` int32 slots that they get.
      count: ``[1]`` int32: only the first keys count.

    Returns:
      As ``insert``.
    """
    n, buckets = len(slot), len(directory.keys)
    size = most_of_few(n)

    def replace_some(carried):
        directory, unplaced, first = carried
        begin = jnp.minimum(first, n - size)
        some_outgoing, some_leave, some_incoming, some_come, some_slots = (
            lax.dynamic_slice_in_dim(array, begin, size)
            for array in (outgoing, leaves, incoming, comes, slot)
        )
        index = begin + jnp.arange(size, dtype=jnp.int32)
        wanted = (index >= first) & (index < count)
        bucket, way, present = locate(directory, some_outgoing)
        bucket = jnp.where(present & some_leave & wanted, bucket, buckets)
        directory = Directory(
            directory.keys.at[bucket, way].set(EMPTY, mode="drop"),
            directory.slots.at[bucket, way].set(EMPTY_WAY, mode="drop"),
        )
        directory, left = insert(
            directory, some_incoming, some_slots, some_come & wanted
        )
        return directory, unplaced + left, first + size

    directory, unplaced, _ = lax.while_loop(
        lambda carried: carried[2] < count[0],
        replace_some,
        (directory, jnp.zeros(1, jnp.int32), jnp.zeros((), jnp.int32)),
    )
    return directory, unplaced


def locate(
    directory: Directory, keys: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns ``(bucket, way, whether it is there)`` of keys."""
    choices = _buckets(keys, len(directory.keys))
    equal = (directory.keys[choices] == keys[:, None, None]).all(axis=-1)
    equal = equal.reshape(len(keys), -1)
    choice, way = jnp.divmod(jnp.argmax(equal, axis=1), WAYS)
    bucket = jnp.take_along_axis(choices, choice[:, None], axis=1)[:, 0]
    return bucket, way, equal.any(axis=1)


def _rank_in_bucket(bucket: jax.Array, buckets: int) -> jax.Array:
    """Returns ``[n]``: how many before each element have its bucket."""
    sorted_bucket, order = sort_positions(bucket.astype(jnp.uint32), buckets + 1)
    index_in_order = jnp.arange(len(bucket), dtype=jnp.int32)
    is_first = begins_segment(sorted_bucket)
    rank = index_in_order - lax.cummax(jnp.where(is_first, index_in_order, 0))
    return jnp.zeros_like(rank).at[order].set(rank, unique_indices=True)


def _buckets(keys: jax.Array, buckets: int) -> jax.Array:
    """Returns the different buckets of each key, ``[n, CHOICES]`` int32."""
    first, step = (hash_words(keys, seed) for seed in (0x9E3779B9, 0x85EBCA6B))
    first = first % np.uint32(buckets)
    second = (first + 1 + step % np.uint32(buckets - 1)) % np.uint32(buckets)
    return jnp.stack([first, second], axis=1).astype(jnp.int32)
