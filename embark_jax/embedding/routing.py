"""Integer work on ids, local to a device: it makes them unique by owner.

Nothing here depends on parameters, so that a route can be made a step ahead.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from embark_kernels import Runs, sort_positions


class UniqueBuckets(NamedTuple):
    """Unique slots by owner, ready to be exchanged.

    Attributes:
      slot: ``[devices, capacity]`` slot on the owner; ``slots`` where empty.
      entry: ``[devices, capacity]`` first entry with the slot; ``n`` where empty.
      inverse: ``[n]`` place of each entry in the flattened buckets;
        ``devices * capacity`` where padded.
      count: ``[devices]`` unique slots for each owner; above capacity it overflowed.
      runs: entries sorted by place, a by-product of routing.
    """

    slot: jax.Array
    entry: jax.Array
    inverse: jax.Array
    count: jax.Array
    runs: Runs


def unique_by_owner(
    owner: jax.Array, slot: jax.Array, devices: int, slots: int, capacity: int
) -> UniqueBuckets:
    """Makes (owner, slot) unique and sorts what is left into a bucket for each owner.

    Args:
      owner: ``[n]`` int32 in ``[0, devices]``; ``devices`` marks padding.
      slot: ``[n]`` int32 in ``[0, slots]``; ``slots`` where padded.
      devices, slots: number of each.
      capacity: number of places in a bucket.
    """
    n, num_keys = owner.shape[0], devices * slots + 1
    wide = num_keys > 2**31
    position = jnp.arange(n, dtype=jnp.int32)
    with jax.enable_x64(wide):
        key_type = jnp.uint64 if wide else jnp.uint32
        padding = jnp.asarray(num_keys - 1, key_type)
        key = owner.astype(key_type) * jnp.asarray(slots, key_type)
        key = jnp.where(owner == devices, padding, key + slot.astype(key_type))
        sorted_key, order = sort_positions(key, num_keys)
        is_first = jnp.concatenate(
            [jnp.ones(1, bool), sorted_key[1:] != sorted_key[:-1]]
        )
        rank = jnp.cumsum(is_first, dtype=jnp.int32) - 1
        # Every owner's first key is devices * slots at most, which is the padding: the
        # last edge is where padding begins.
        edges = jnp.arange(devices + 1, dtype=key_type) * jnp.asarray(slots, key_type)
        edge = jnp.searchsorted(sorted_key, edges)
        start = jnp.append(rank, rank[-1] + 1)[edge]
        count = start[1:] - start[:-1]
        place = jnp.arange(capacity, dtype=jnp.int32)[None]
        filled = place < count[:, None]
        # The sorted entry that is the first of its key.
        begin = jnp.full(n, n, jnp.int32)
        begin = begin.at[rank].min(position, indices_are_sorted=True)
        bucket_begin = begin.at[start[:-1, None] + place].get(mode="clip")
        bucket_slot = (sorted_key[bucket_begin] - edges[:-1, None]).astype(jnp.int32)
        sorted_owner = (sorted_key // jnp.asarray(slots, key_type)).astype(jnp.int32)
    offset = rank - start.at[sorted_owner].get(mode="clip")
    lost = (sorted_key == padding) | (offset >= capacity)
    destination = jnp.where(lost, devices * capacity, sorted_owner * capacity + offset)
    inverse = jnp.zeros(n, jnp.int32).at[order].set(destination, unique_indices=True)
    return UniqueBuckets(
        jnp.where(filled, bucket_slot, slots),
        jnp.where(filled, order[bucket_begin], n),
        inverse,
        count,
        Runs(order, destination),
    )
