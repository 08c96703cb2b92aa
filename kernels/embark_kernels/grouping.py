"""Integer work on ids: sorting, making unique, grouping by row, bucketing by owner.

Nothing here depends on parameters, so it can be done a step ahead. An *entry* is an
element of a flat array of ids. On CPU each sort packs key and position into one
unsigned integer: a one-operand sort is several times faster there than sorting pairs. A
GPU sorts by digits, so keys there are as narrow as possible, and positions come along.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from embark_kernels._implementation import choose

KEY_TYPES = (jnp.uint16, jnp.uint32, jnp.uint64)
MARKS_PER_ENTRY = 32
"""Rows are marked instead of sorted if a table has at most this many rows for each
entry of a batch: then the marks of all rows take less memory than the sums of the
entries."""


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

    def packed(keys):
        packed_type = jnp.uint64 if bits > 32 else jnp.uint32
        position = jnp.arange(keys.shape[0], dtype=packed_type)
        shift = jnp.asarray(position_bits, packed_type)
        mask = jnp.asarray((1 << position_bits) - 1, packed_type)
        packed = jnp.sort((keys.astype(packed_type) << shift) | position)
        return (packed >> shift).astype(keys.dtype), (packed & mask).astype(jnp.int32)

    def paired(keys):
        narrow = next(t for t in KEY_TYPES if num_keys <= jnp.iinfo(t).max)
        position = jnp.arange(keys.shape[0], dtype=jnp.int32)
        key, order = lax.sort((keys.astype(narrow), position), num_keys=1)
        return key.astype(keys.dtype), order

    with jax.enable_x64(bits > 32 or keys.dtype == jnp.uint64):
        return lax.platform_dependent(keys, cpu=packed, default=paired)


class Unique(NamedTuple):
    """Unique ids.

    Attributes:
      ids: ``[capacity]`` int32 ascending; ``num_ids`` where unused.
      counts: ``[capacity]`` int32 how often each occurs.
      inverse: ``[n]`` int32 index of each entry's id in ``ids``; ``capacity`` where
        padded or lost.
      needed: ``[]`` int32 number of unique ids; above ``capacity``, the largest ids are
        lost.
    """

    ids: jax.Array
    counts: jax.Array
    inverse: jax.Array
    needed: jax.Array


def unique(ids: jax.Array, num_ids: int, capacity: int) -> Unique:
    """Makes ids unique.

    Args:
      ids: ``[n]`` int32; outside ``[0, num_ids)`` where padded.
      num_ids: static bound of the ids.
      capacity: static number of unique ids to hold.
    """
    runs = _sort_into_runs(ids, num_ids)
    present = runs.key < num_ids
    place = jnp.where(present & (runs.run < capacity), runs.run, capacity)
    # Positions of one run are consecutive: its last one + 1 is its end.
    edges = jnp.arange(capacity + 1, dtype=jnp.int32)
    offsets = jnp.searchsorted(place, edges).astype(jnp.int32)
    filled = jnp.full(capacity, num_ids, jnp.int32)
    inverse = jnp.zeros(ids.shape, jnp.int32)
    return Unique(
        filled.at[place].set(runs.key, mode="drop"),
        offsets[1:] - offsets[:-1],
        inverse.at[runs.order].set(place, unique_indices=True),
        jnp.sum(present & runs.is_first, dtype=jnp.int32),
    )


class Runs(NamedTuple):
    """Entries ordered by group, for the kernel.

    Attributes:
      order: ``[n]`` entries in that order.
      group: ``[n]`` group of each of them; ``groups`` where padded.
    """

    order: jax.Array
    group: jax.Array


class RowGroups(NamedTuple):
    """Entries grouped by the row they touch, for ``update.sum_groups``.

    Attributes:
      row: ``[groups]`` row of each group, each once; where unused, unique values at or
        beyond the number of rows.
      entry_group: ``[n]`` group of each entry's row; None for the kernel.
      runs: what the kernel needs; None for plain XLA.
    """

    row: jax.Array
    entry_group: jax.Array | None
    runs: Runs | None

    @property
    def group(self) -> jax.Array:
        """``[n]`` group of each entry's row; ``groups`` where padded."""
        if self.runs is None:
            assert self.entry_group is not None
            return self.entry_group
        order, group = self.runs
        return jnp.zeros_like(group).at[order].set(group, unique_indices=True)


def group_rows(
    rows: jax.Array,
    num_rows: int,
    *,
    most: int | None = None,
    implementation: str | None = None,
) -> RowGroups:
    """Groups entries by row.

    Args:
      rows: ``[n]`` int32; outside ``[0, num_rows)`` where padded.
      num_rows: static number of rows.
      most: largest possible number of unique rows, if known.
      implementation: the implementation that will sum the groups; see
        ``update.sum_groups``.
    """
    if choose(implementation) == "mosaic_gpu":
        return _group_sorted(rows, num_rows)
    most = num_rows if most is None else most
    groups = min(rows.shape[0], num_rows, most)
    if num_rows > MARKS_PER_ENTRY * rows.shape[0]:
        runs = _sort_into_runs(rows, num_rows)
        present = runs.key < num_rows
        run = jnp.where(present, runs.run, groups)
        row = num_rows + jnp.arange(groups, dtype=jnp.int32)
        group = jnp.zeros(rows.shape, jnp.int32)
        return RowGroups(
            row.at[run].set(runs.key, mode="drop"),
            group.at[runs.order].set(run, unique_indices=True),
            None,
        )
    return _group_marked(rows, num_rows, groups)


def group_targets(
    target: jax.Array,
    size: int,
    *,
    runs: Runs | None = None,
    implementation: str | None = None,
) -> RowGroups:
    """Groups like ``group_rows``, with a group for every row, in order, to sum into an
    array.

    Args:
      target: ``[n]`` int32; outside ``[0, size)`` where padded.
      size: static size of the array.
      runs: the entries by target, if known; otherwise they are sorted for the kernel.
      implementation: the implementation that will sum the groups; see
        ``update.sum_groups``.
    """
    row = jnp.arange(size, dtype=jnp.int32)
    group = jnp.where((target >= 0) & (target < size), target, size)
    if choose(implementation) == "xla":
        return RowGroups(row, group, None)
    if runs is not None:
        return RowGroups(row, None, runs)
    key, order = sort_positions(group, size + 1)
    return RowGroups(row, None, Runs(order, key))


def _group_marked(rows: jax.Array, num_rows: int, groups: int) -> RowGroups:
    """Groups without sorting: marks each row with its first entry. Groups are numbered
    in the order of their rows' first entries, so sums into them pass through memory in
    order."""
    n = rows.shape[0]
    position = jnp.arange(n, dtype=jnp.int32)
    present = (rows >= 0) & (rows < num_rows)
    key = jnp.where(present, rows, num_rows)
    marks = jnp.full(num_rows, n, jnp.int32).at[key].min(position, mode="drop")
    first = marks.at[key].get(mode="fill", fill_value=n)
    rank = jnp.cumsum(first == position, dtype=jnp.int32) - 1
    group = rank.at[first].get(mode="fill", fill_value=groups)
    row = num_rows + jnp.arange(groups, dtype=jnp.int32)
    return RowGroups(row.at[group].set(key, mode="drop"), group, None)


def _group_sorted(rows: jax.Array, num_rows: int) -> RowGroups:
    """Groups by sorting: a group's number is the first sorted entry of its row, so that
    nothing must be counted."""
    n = rows.shape[0]
    runs = _sort_into_runs(rows, num_rows)
    position = jnp.arange(n, dtype=jnp.int32)
    present = runs.key < num_rows
    first = lax.cummax(jnp.where(runs.is_first, position, 0))
    return RowGroups(
        jnp.where(runs.is_first & present, runs.key, num_rows + position),
        None,
        Runs(runs.order, jnp.where(present, first, n)),
    )


class Buckets(NamedTuple):
    """Entries by owner, ready to be exchanged.

    Attributes:
      entry: ``[owners, capacity]`` int32 entry at each place; ``n`` where empty.
      needed: ``[]`` int32 number of entries of the fullest bucket; above capacity, the
        last entries are lost.
    """

    entry: jax.Array
    needed: jax.Array


def bucket_by_owner(
    owner: jax.Array,
    owners: int,
    capacity: int,
    *,
    minor: jax.Array | None = None,
    minors: int = 1,
) -> Buckets:
    """Sorts entries into one bucket per owner, there by ``minor``, then as given.

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
        start = jnp.searchsorted(sorted_key, edges).astype(jnp.int32)
    count = start[1:] - start[:-1]
    place = jnp.arange(capacity, dtype=jnp.int32)[None]
    entry = order.at[start[:-1, None] + place].get(mode="fill", fill_value=n)
    return Buckets(jnp.where(place < count[:, None], entry, n), count.max())


class _Runs(NamedTuple):
    """Sorted keys, the order that sorts them, and their runs of equal keys."""

    key: jax.Array
    order: jax.Array
    is_first: jax.Array
    run: jax.Array


def _sort_into_runs(keys: jax.Array, num_keys: int) -> _Runs:
    """Sorts ``[n]`` keys; those outside ``[0, num_keys)`` become ``num_keys``."""
    keys = jnp.where((keys >= 0) & (keys < num_keys), keys, num_keys)
    key, order = sort_positions(keys, num_keys + 1)
    is_first = jnp.concatenate([jnp.ones(1, bool), key[1:] != key[:-1]])[: key.size]
    return _Runs(key, order, is_first, jnp.cumsum(is_first, dtype=jnp.int32) - 1)
