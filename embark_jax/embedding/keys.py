"""Keys of dynamic tables on the devices: any 64 bits, in two words of 32.

A device sees the keys of its samples, and an owner those that hash to it; between the
two, and for sums, they are *ranks*: numbers of the different keys that a device sees,
from 0, which are small enough to sort like rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from embark_kernels import sort_positions
from jax import lax

from embark_jax.embedding.exchange import Exchange, Filled

WORDS = 2
OWNER_SEED = 0xC2B2AE3D
"""Seed of the hash that chooses a key's row shard; key indexes have others."""


class RankedKeys(NamedTuple):
    """Ranks of keys.

    Attributes:
      rank: ``[n]`` int32 rank of each key; ``n`` where there is none.
      keys: ``[n, 2]`` uint32 keys by rank; anything from ``count`` on.
      count: ``[]`` int32 number of different keys.
    """

    rank: jax.Array
    keys: jax.Array
    count: jax.Array


def words_of(ids: jax.Array) -> jax.Array:
    """Returns the low and high words of integers of 32 or 64 bits, ``[..., 2]``."""
    with jax.enable_x64(True):
        return lax.bitcast_convert_type(ids.astype(jnp.int64), jnp.uint32)


def hash_words(words: Any, seed: int) -> Any:
    """Returns MurmurHash3 of the words of each key, ``[...]`` uint32, of
    ``[..., words]`` uint32 in JAX or NumPy
    (https://github.com/aappleby/smhasher/blob/master/src/MurmurHash3.cpp)."""
    value = words[..., 0] ^ words[..., 0] ^ np.uint32(seed)
    for i in range(words.shape[-1]):
        word = words[..., i] * np.uint32(0xCC9E2D51)
        word = (word << 15) | (word >> 17)
        value = value ^ (word * np.uint32(0x1B873593))
        value = (value << 13) | (value >> 19)
        value = value * np.uint32(5) + np.uint32(0xE6546B64)
    value = (value ^ (value >> 16)) * np.uint32(0x85EBCA6B)
    value = (value ^ (value >> 13)) * np.uint32(0xC2B2AE35)
    return value ^ (value >> 16)


def row_shard_of(words: Any, row_shards: int) -> Any:
    """Returns the row shard ``[...]`` uint32 that owns each of ``[..., 2]`` keys."""
    return hash_words(words, OWNER_SEED) % np.uint32(row_shards)


def rank_keys(keys: jax.Array, present: jax.Array) -> RankedKeys:
    """Ranks ``[n, 2]`` keys in the order of their values; ``[n]`` bool ``present`` says
    which count."""
    n = len(keys)
    keys = jnp.where(present[:, None], keys, keys[jnp.argmax(present)])
    order = _order(keys)
    in_order = keys[order]
    is_first = (in_order != jnp.roll(in_order, 1, axis=0)).any(axis=1).at[0].set(True)
    number = jnp.cumsum(is_first, dtype=jnp.int32) - 1
    rank = jnp.zeros(n, jnp.int32).at[order].set(number, unique_indices=True)
    by_rank = jnp.zeros_like(keys).at[number].set(in_order, indices_are_sorted=True)
    count = jnp.where(present.any(), number[-1] + 1, 0)
    return RankedKeys(jnp.where(present, rank, n), by_rank, count)


def _order(keys: jax.Array) -> jax.Array:
    """Returns the ``[n]`` int32 order of ``[n, 2]`` keys."""

    def by_one_word_after_the_other(keys):
        _, order = sort_positions(keys[:, 0], 2**32)
        _, then = sort_positions(keys[order, 1], 2**32)
        return order[then]

    def at_once(keys):
        index = jnp.arange(len(keys), dtype=jnp.int32)
        whole = lax.bitcast_convert_type(keys, jnp.uint64)
        return lax.sort((whole, index), num_keys=1)[1]

    with jax.enable_x64(True):
        return lax.platform_dependent(
            keys, cpu=by_one_word_after_the_other, default=at_once
        )


def swap_keys(
    exchange: Exchange, keys: jax.Array, count: jax.Array, filled: Filled | None
) -> tuple[jax.Array, jax.Array]:
    """Sends keys to their owners.

    Args:
      exchange: exchange of the storage.
      keys: ``[devices, capacity, 2]`` keys for each device, at the front.
      count: ``[devices]`` int32 number of them.
      filled: result of ``exchange.announce(count)``.

    Returns:
      ``[devices * capacity, 2]`` keys, and which of them are there. Where all cells
      travel, the count does in one more cell.
    """
    devices, capacity, _ = keys.shape
    if filled is None:
        head = jnp.zeros((devices, 1, WORDS), jnp.uint32)
        head = head.at[:, 0, 0].set(count.astype(jnp.uint32))
        received = exchange.swap(jnp.concatenate([head, keys], axis=1))
        received_count = received[:, 0, 0].astype(jnp.int32)
        received = received[:, 1:]
    else:
        received = exchange.swap(keys, filled=filled)
        received_count = filled.received
    present = jnp.arange(capacity, dtype=jnp.int32)[None] < received_count[:, None]
    return received.reshape(-1, WORDS), present.reshape(-1)
