"""Buckets by owner: ids as they are, or unique ones."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from embark_kernels.grouping import (
    SortedIds,
    begins_segment,
    number_segments,
    sort_positions,
)


class Buckets(NamedTuple):
    """Ids by owner, ready to be exchanged.

    Attributes:
      source: ``[owners, capacity]`` int32 position of the id in each place of a bucket;
        ``n`` where empty.
      needed: ``[]`` int32 number of ids of the fullest bucket; above capacity, the last
        ids are lost.
    """

    source: jax.Array
    needed: jax.Array


def bucket_by_owner(
    owner: jax.Array,
    owners: int,
    capacity: int,
    *,
    minor: jax.Array | None = None,
    minors: int = 1,
) -> Buckets:
    """Sorts ids into one bucket per owner, there by ``minor``, then as given.

    Args:
      owner: ``[n]`` int32 in ``[0, owners]``; ``owners`` marks padding.
      owners: number of owners.
      capacity: static size of a bucket.
      minor: ``[n]`` int32 in ``[0, minors)``, or None to keep the order.
      minors: static bound of ``minor``.
    """
    n, num_keys = owner.shape[0], (owners + 1) * minors
    wide = num_keys > 2**31
    with jax.enable_x64(wide):
        key_type = jnp.uint64 if wide else jnp.uint32
        key = owner.astype(key_type) * jnp.asarray(minors, key_type)
        if minor is not None:
            key += minor.astype(key_type)
        sorted_key, order = sort_positions(key, num_keys)
        edges = jnp.arange(owners + 1, dtype=key_type) * jnp.asarray(minors, key_type)
        start = _starts(sorted_key, edges)
    count = start[1:] - start[:-1]
    place = jnp.arange(capacity, dtype=jnp.int32)[None]
    source = order.at[start[:-1, None] + place].get(mode="fill", fill_value=n)
    return Buckets(jnp.where(place < count[:, None], source, n), count.max())


class UniqueBuckets(NamedTuple):
    """Unique slots by owner, ready to be exchanged.

    Attributes:
      slot: ``[owners, capacity]`` slot on the owner; ``slots`` where empty.
      source: ``[owners, capacity]`` position of the first id with the slot; ``n`` where
        empty.
      inverse: ``[n]`` place of each id's slot in the flattened buckets;
        ``owners * capacity`` where padded or lost.
      count: ``[owners]`` unique slots of each owner; above capacity, the largest slots
        are lost.
      sorted_ids: ids sorted by ``inverse``, for ``group_targets``.
    """

    slot: jax.Array
    source: jax.Array
    inverse: jax.Array
    count: jax.Array
    sorted_ids: SortedIds


def unique_by_owner(
    owner: jax.Array,
    slot: jax.Array,
    owners: int,
    slots: int,
    capacity: int,
    *,
    implementation: str | None = None,
) -> UniqueBuckets:
    """Makes (owner, slot) unique and sorts what is left into a bucket for each owner.

    Args:
      owner: ``[n]`` int32 in ``[0, owners]``; ``owners`` marks padding.
      slot: ``[n]`` int32 in ``[0, slots]``; ``slots`` where padded.
      owners, slots: number of each.
      capacity: static size of a bucket.
      implementation: "xla", "mosaic_gpu", or None: see ``choose``.
    """
    num_keys = owners * slots + 1
    with jax.enable_x64(num_keys > 2**31):
        key_type = jnp.uint64 if num_keys > 2**31 else jnp.uint32
        stride = jnp.asarray(slots, key_type)
        padding = jnp.asarray(num_keys - 1, key_type)
        key = owner.astype(key_type) * stride
        key = jnp.where(owner == owners, padding, key + slot.astype(key_type))
        sorted_key, order = sort_positions(key, num_keys)
        sorted_owner = sorted_key // stride
        sorted_slot = (sorted_key - sorted_owner * stride).astype(jnp.int32)
        is_first = begins_segment(sorted_key)
    return bucket_sorted(
        order,
        sorted_owner.astype(jnp.int32),
        sorted_slot,
        is_first,
        owners,
        slots,
        capacity,
        implementation=implementation,
    )


def bucket_sorted(
    order: jax.Array,
    owner: jax.Array,
    slot: jax.Array,
    is_first: jax.Array,
    owners: int,
    slots: int,
    capacity: int,
    *,
    implementation: str | None = None,
) -> UniqueBuckets:
    """Sorts ids into buckets like ``unique_by_owner``, once they are sorted by owner,
    and equal ones lie side by side.

    Args:
      order: ``[n]`` int32 positions of the ids in that order.
      owner, slot: as in ``unique_by_owner``, in that order.
      is_first: ``[n]`` bool: which are the first of several equal ones, in that order.
      owners, slots, capacity, implementation: as in ``unique_by_owner``.
    """
    n = len(order)
    edges = jnp.arange(owners + 1, dtype=jnp.int32)
    edge = _starts(owner, edges)
    number, first = number_segments(is_first, n, implementation=implementation)
    start = jnp.where(edge < n, number.at[edge].get(mode="clip"), number[-1] + 1)
    count = start[1:] - start[:-1]
    place = jnp.arange(capacity, dtype=jnp.int32)[None]
    used = place < count[:, None]
    # All indices below ascend, over the buckets, too.
    last = jnp.minimum(start[1:], number[-1])[:, None]
    segment = jnp.minimum(start[:-1, None] + place, last)
    begin = first.at[segment].get(mode="clip", indices_are_sorted=True)
    source = order.at[begin].get(mode="clip", indices_are_sorted=True)
    bucket_slot = slot.at[begin].get(mode="clip", indices_are_sorted=True)
    sorted_place = number - start.at[owner].get(mode="clip")
    lost = (owner == owners) | (sorted_place >= capacity)
    sorted_place = jnp.where(lost, owners * capacity, owner * capacity + sorted_place)
    inverse = jnp.zeros(n, jnp.int32).at[order].set(sorted_place, unique_indices=True)
    return UniqueBuckets(
        jnp.where(used, bucket_slot, slots),
        jnp.where(used, source, n),
        inverse,
        count,
        SortedIds(order, sorted_place, sorted_place),
    )


def _starts(sorted_keys: jax.Array, keys: jax.Array) -> jax.Array:
    """Returns for each of a few keys how many sorted ones are below it."""
    # Unrolled, the search is some kernels on a GPU, of which a loop launches four for
    # each step; on a CPU it takes longer to compile.
    search = functools.partial(jnp.searchsorted, sorted_keys, keys)
    start = lax.platform_dependent(
        cpu=search, default=functools.partial(search, method="scan_unrolled")
    )
    return start.astype(jnp.int32)
