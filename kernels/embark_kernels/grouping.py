"""Groups the ids of a batch by the row that they touch, and sorts them for that.

Nothing here depends on parameters, so it can be done a step ahead. The ids lie in a
flat array; a *segment* is consecutive sorted ids with equal keys.

On CPU each sort packs key and position into one unsigned integer: a one-operand sort is
several times faster there than sorting pairs. A GPU sorts by digits, so keys there are
as narrow as possible, and positions come along.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from embark_kernels._implementation import choose

KEY_TYPES = (jnp.uint16, jnp.uint32, jnp.uint64)
ROWS_PER_ID = 32
"""Ids are grouped without sorting if a table has at most this many rows for each id of
a batch: then a number for each row takes less memory than the sums of the ids."""


class SortedIds(NamedTuple):
    """Ids ordered by group, for the kernel.

    Attributes:
      order: ``[n]`` positions of the ids in that order.
      row: ``[n]`` row of each of them; out of range where padded.
      group: ``[n]`` group of each of them; ``groups`` where padded.
    """

    order: jax.Array
    row: jax.Array
    group: jax.Array


class RowGroups(NamedTuple):
    """Ids grouped by the row they touch, for ``update.sum_groups``.

    Attributes:
      row: ``[groups]`` row of each group, each once; where unused, unique values at or
        beyond the number of rows.
      group_of_id: ``[n]`` group of each id's row; None for the kernel.
      sorted_ids: what the kernel needs; None for plain XLA.
      needed: ``[1]`` int32 number of unique rows; above ``groups``, some are lost.
    """

    row: jax.Array
    group_of_id: jax.Array | None
    sorted_ids: SortedIds | None
    needed: jax.Array

    @property
    def group(self) -> jax.Array:
        """``[n]`` group of each id's row; ``groups`` where padded."""
        if self.sorted_ids is None:
            assert self.group_of_id is not None
            return self.group_of_id
        return _unsorted(self.sorted_ids.order, self.sorted_ids.group)

    def with_rows(self, row: jax.Array) -> RowGroups:
        """Returns the same groups, of other ``[groups]`` rows."""
        sorted_ids = self.sorted_ids
        if sorted_ids is not None:
            of_id = row.at[sorted_ids.group].get(
                mode="fill", fill_value=-1, indices_are_sorted=True
            )
            sorted_ids = sorted_ids._replace(row=of_id)
        return self._replace(row=row, sorted_ids=sorted_ids)


def group_rows(
    rows: jax.Array,
    num_rows: int,
    *,
    max_groups: int | None = None,
    implementation: str | None = None,
) -> RowGroups:
    """Groups ids by row.

    Args:
      rows: ``[n]`` int32; outside ``[0, num_rows)`` where padded.
      num_rows: static number of rows.
      max_groups: most unique rows that there is room for; None is all that there may
        be. ``RowGroups.needed`` says whether they had room.
      implementation: the implementation that will sum the groups; see
        ``update.sum_groups``.
    """
    groups = min(rows.shape[0], num_rows)
    if max_groups is not None:
        groups = min(groups, max_groups)
    for_kernel = choose(implementation) == "mosaic_gpu"
    if for_kernel or num_rows > ROWS_PER_ID * rows.shape[0]:
        return _group_by_sorting(rows, num_rows, groups, for_kernel)
    return _group_by_first_ids(rows, num_rows, groups)


def group_targets(
    target: jax.Array,
    size: int,
    *,
    sorted_ids: SortedIds | None = None,
    implementation: str | None = None,
) -> RowGroups:
    """Groups like ``group_rows``, with a group for every row, in order, to sum into an
    array.

    Args:
      target: ``[n]`` int32; outside ``[0, size)`` where padded.
      size: static size of the array.
      sorted_ids: the ids by target; None sorts them for the kernel.
      implementation: the implementation that will sum the groups; see
        ``update.sum_groups``.
    """
    row = jnp.arange(size, dtype=jnp.int32)
    group = jnp.where((target >= 0) & (target < size), target, size)
    needed = jnp.full(1, size, jnp.int32)
    if choose(implementation) == "xla":
        return RowGroups(row, group, None, needed)
    if sorted_ids is None:
        key, order = sort_positions(group, size + 1)
        sorted_ids = SortedIds(order, key, key)
    return RowGroups(row, None, sorted_ids, needed)


def sort_positions(keys: jax.Array, num_keys: int) -> tuple[jax.Array, jax.Array]:
    """Sorts small integers stably.

    Args:
      keys: ``[n]`` integers in ``[0, num_keys)``; uint64 if they need it.
      num_keys: static bound of the keys.

    Returns:
      ``(sorted keys, order)``: ``[n]`` each, the keys in their own dtype, order int32
      such that ``keys[order]`` is sorted.

    Raises:
      ValueError: if key and position together need more than 64 bits.
    """
    position_bits = max(1, (keys.shape[0] - 1).bit_length())
    bits = position_bits + max(1, (num_keys - 1).bit_length())
    if bits > 64:
        raise ValueError(
            f"{keys.shape[0]} keys below {num_keys} need {bits} bits to sort, have 64"
        )

    def sort_packed(keys):
        packed_type = jnp.uint64 if bits > 32 else jnp.uint32
        position = jnp.arange(keys.shape[0], dtype=packed_type)
        shift = jnp.asarray(position_bits, packed_type)
        mask = jnp.asarray((1 << position_bits) - 1, packed_type)
        packed = jnp.sort((keys.astype(packed_type) << shift) | position)
        return (packed >> shift).astype(keys.dtype), (packed & mask).astype(jnp.int32)

    def sort_pairs(keys):
        narrow = next(t for t in KEY_TYPES if num_keys <= jnp.iinfo(t).max)
        position = jnp.arange(keys.shape[0], dtype=jnp.int32)
        key, order = lax.sort((_as_type(keys, narrow), position), num_keys=1)
        return _as_type(key, keys.dtype), order

    with jax.enable_x64(bits > 32 or keys.dtype == jnp.uint64):
        return lax.platform_dependent(keys, cpu=sort_packed, default=sort_pairs)


def begins_segment(keys: jax.Array) -> jax.Array:
    """Returns ``[n]`` bool: whether each of ``[n]`` sorted keys is the first of its
    segment."""
    return jnp.concatenate([jnp.ones(1, bool), keys[1:] != keys[:-1]])[: keys.size]


def number_segments(
    is_first: jax.Array, capacity: int, *, implementation: str | None = None
) -> tuple[jax.Array, jax.Array]:
    """Numbers segments in their order, from 0.

    Args:
      is_first: ``[n]`` bool from ``begins_segment``.
      capacity: static number of segments to hold.
      implementation: "xla", "mosaic_gpu", or None: see ``choose``.

    Returns:
      ``(number, first)``, int32: ``[n]`` number of each id's segment, and
      ``[capacity]`` position of the first id of each segment, anything where there is
      no segment.
    """
    n = is_first.shape[0]
    if n and capacity and choose(implementation) == "mosaic_gpu":
        # Imported here, so that plain XLA does not need Mosaic.
        from embark_kernels._segments_kernel import number_segments_mosaic_gpu

        return number_segments_mosaic_gpu(is_first, capacity)
    position = jnp.arange(n, dtype=jnp.int32)
    number = jnp.cumsum(is_first, dtype=jnp.int32) - 1
    first = jnp.full(capacity, n, jnp.int32)
    return number, first.at[number].min(position, mode="drop", indices_are_sorted=True)


def _group_by_first_ids(rows: jax.Array, num_rows: int, groups: int) -> RowGroups:
    """Groups without sorting: each row has the position of its first id. Groups are
    numbered in the order of these, so sums into them pass through memory in order."""
    n = rows.shape[0]
    position = jnp.arange(n, dtype=jnp.int32)
    key = jnp.where((rows >= 0) & (rows < num_rows), rows, num_rows)
    first_of_row = jnp.full(num_rows, n, jnp.int32).at[key].min(position, mode="drop")
    first = first_of_row.at[key].get(mode="fill", fill_value=n)
    is_first = first == position
    rank = jnp.cumsum(is_first, dtype=jnp.int32) - 1
    group = rank.at[first].get(mode="fill", fill_value=groups)
    row = num_rows + jnp.arange(groups, dtype=jnp.int32)
    row = row.at[group].set(key, mode="drop")
    needed = is_first.sum(dtype=jnp.int32, keepdims=True)
    return RowGroups(row, group, None, needed)


def _group_by_sorting(
    rows: jax.Array, num_rows: int, groups: int, for_kernel: bool
) -> RowGroups:
    """Groups by sorting: groups are numbered in the order of their rows."""
    keys = jnp.where((rows >= 0) & (rows < num_rows), rows, num_rows)
    key, order = sort_positions(keys, num_rows + 1)
    implementation = "mosaic_gpu" if for_kernel else "xla"
    is_first = begins_segment(key)
    number, first = number_segments(is_first, groups, implementation=implementation)
    index = jnp.arange(groups, dtype=jnp.int32)
    first = jnp.where(index <= number[-1:], first, len(rows))
    row = key.at[first].get(mode="fill", fill_value=num_rows, indices_are_sorted=True)
    row = jnp.where(row < num_rows, row, num_rows + index)
    used = (key < num_rows) & (number < groups)
    group = jnp.where(used, number, groups)
    needed = (is_first & (key < num_rows)).sum(dtype=jnp.int32, keepdims=True)
    if for_kernel:
        return RowGroups(row, None, SortedIds(order, key, group), needed)
    return RowGroups(row, _unsorted(order, group), None, needed)


def _unsorted(order: jax.Array, of_sorted: jax.Array) -> jax.Array:
    """Puts ``[n]`` values of sorted ids in the order of the ids."""
    return jnp.zeros_like(of_sorted).at[order].set(of_sorted, unique_indices=True)


def _as_type(keys: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """Converts integers >= 0, without a copy between types of one size."""
    if keys.dtype.itemsize == jnp.dtype(dtype).itemsize:
        return lax.bitcast_convert_type(keys, dtype)
    return keys.astype(dtype)
