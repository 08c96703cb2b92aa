"""Keys of cached tables' rows on the devices: 64 bits, in two words of 32.

A device sees the keys of its samples, and sorts them once, by owner. An owner sorts
those alone that it does not know.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from embark_jax.embedding.exchange import Exchange

WORDS = 2
OWNER_SEED = 0xC2B2AE3D
"""Seed of the hash that chooses a key's row shard; key indexes have others."""
ORDER_SEEDS = (0x8DA6B343, 0xD8163841)
"""Seeds of the hashes by which keys are sorted."""


class SortedKeys(NamedTuple):
    """Keys by owner, and there in any order in which equal ones lie side by side.

    Attributes:
      order: ``[n]`` int32 positions of the keys in that order.
      owner: ``[n]`` int32 owner of each of them.
      is_first: ``[n]`` bool: which are the first of several equal ones.
    """

    order: jax.Array
    owner: jax.Array
    is_first: jax.Array


def words_of(ids: Any) -> Any:
    """Returns the low and high words ``[..., 2]`` uint32 of integers of 32 or 64 bits,
    in JAX or NumPy."""
    if isinstance(ids, np.ndarray):
        return ids.astype(np.int64)[..., None].view(np.uint32)
    with jax.enable_x64(True):
        return lax.bitcast_convert_type(ids.astype(jnp.int64), jnp.uint32)


def keys_of(words: np.ndarray) -> np.ndarray:
    """Inverts ``words_of``: returns ``[...]`` int64 keys."""
    return np.ascontiguousarray(words).view(np.int64)[..., 0]


def hash_words(words: Any, seed: int) -> Any:
    """Returns MurmurHash3 of the words of each key, ``[...]`` uint32, of
    ``[..., words]`` uint32 in JAX or NumPy
    (https://github.com/aappleby/smhasher/blob/master/src/MurmurHash3.cpp)."""
    value = np.uint32(seed)
    for i in range(WORDS):
        word = words[..., i] * np.uint32(0xCC9E2D51)
        word = (word << 15) | (word >> 17)
        value = value ^ (word * np.uint32(0x1B873593))
        value = (value << 13) | (value >> 19)
        value = value * np.uint32(5) + np.uint32(0xE6546B64)
    value = (value ^ (value >> 16)) * np.uint32(0x85EBCA6B)
    value = (value ^ (value >> 13)) * np.uint32(0xC2B2AE35)
    return value ^ (value >> 16)


def row_shard_of(words: Any, row_shards: int) -> Any:
    """Returns the row shard ``[...]`` uint32 that owns each of ``[..., 2]`` keys of a
    dynamic table."""
    return hash_words(words, OWNER_SEED) % np.uint32(row_shards)


def sort_keys(keys: jax.Array, owner: jax.Array, owners: int) -> SortedKeys:
    """Sorts keys by owner and hash.

    On CPU owner, hash and position are packed into one integer, as in
    ``sort_positions``. If two keys are the same in the bits that have room, all are
    sorted again, by all of their bits.

    Args:
      keys: ``[n, words]`` uint32 keys.
      owner: ``[n]`` int32 in ``[0, owners]``; ``owners`` marks padding.
      owners: static number of owners.
    """
    n = len(keys)
    index = jnp.arange(n, dtype=jnp.int32)
    position_bits, owner_bits = max(1, (n - 1).bit_length()), owners.bit_length()
    with jax.enable_x64(True):
        mask = jnp.uint64((1 << position_bits) - 1)
        hashes = [hash_words(keys, seed) for seed in ORDER_SEEDS]
        hashed = lax.bitcast_convert_type(jnp.stack(hashes, axis=1), jnp.uint64)
        value = owner.astype(jnp.uint64) << jnp.uint64(64 - owner_bits)
        value |= hashed >> jnp.uint64(owner_bits)

        def packed(value):
            ordered = jnp.sort(value & ~mask | index.astype(jnp.uint64))
            return ordered & ~mask, (ordered & mask).astype(jnp.int32)

        def pairs(value):
            return tuple(lax.sort((value, index), num_keys=1))

        value, order = lax.platform_dependent(value, cpu=packed, default=pairs)
        same_value = value[1:] == value[:-1]
    in_order = keys[order]
    same = (in_order[1:] == in_order[:-1]).all(axis=1)
    order = lax.cond(
        (same_value & ~same & (owner[order[1:]] < owners)).any(),
        lambda order: lax.sort((owner, *keys.T, index), num_keys=1 + keys.shape[1])[-1],
        lambda order: order,
        order,
    )
    in_order, owner = keys[order], owner[order]
    differs = (in_order[1:] != in_order[:-1]).any(axis=1) | (owner[1:] != owner[:-1])
    is_first = jnp.concatenate([jnp.ones(1, bool), differs])
    return SortedKeys(order, owner, is_first)


def number_keys(keys: jax.Array, wanted: jax.Array) -> jax.Array:
    """Returns ``[n]`` int32 numbers, from 0, of the different ones of those keys that
    are wanted, ``[n]`` bool; ``n`` for other keys."""
    n = len(keys)
    in_order = sort_keys(keys, (~wanted).astype(jnp.int32), 1)
    number = jnp.cumsum(in_order.is_first, dtype=jnp.int32) - 1
    number = jnp.zeros_like(number).at[in_order.order].set(number, unique_indices=True)
    return jnp.where(wanted, number, n)


def exchange_keys(
    exchange: Exchange, keys: jax.Array, count: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Sends keys to their owners.

    Args:
      exchange: exchange of the storage.
      keys: ``[devices, capacity, 2]`` keys for each device, at the front.
      count: ``[devices]`` int32 number of them.

    Returns:
      ``[devices * capacity, 2]`` keys, and which of them are there: the count travels
      in one more place.
    """
    devices, capacity, _ = keys.shape
    head = jnp.zeros((devices, 1, WORDS), jnp.uint32)
    head = head.at[:, 0, 0].set(count.astype(jnp.uint32))
    received = exchange.all_to_all(jnp.concatenate([head, keys], axis=1))
    received_count = received[:, :1, 0].astype(jnp.int32)
    present = jnp.arange(capacity, dtype=jnp.int32)[None] < received_count
    return received[:, 1:].reshape(-1, WORDS), present.reshape(-1)
