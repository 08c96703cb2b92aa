"""Groups the entries of a batch by the row that they touch.

Nothing here depends on parameters, so it can be done a step ahead. An *entry* is an
element of a flat array of ids.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from embark_kernels._implementation import choose
from embark_kernels.runs import begins_run, number_runs, sort_positions

MARKS_PER_ENTRY = 32
"""Rows are marked instead of sorted if a table has at most this many rows for each
entry of a batch: then the marks of all rows take less memory than the sums of the
entries."""


class Runs(NamedTuple):
    """Entries ordered by group, for the kernel.

    Attributes:
      order: ``[n]`` entries in that order.
      row: ``[n]`` row of each of them; out of range where padded.
      group: ``[n]`` group of each of them; ``groups`` where padded.
    """

    order: jax.Array
    row: jax.Array
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
        return _by_entry(self.runs.order, self.runs.group)

    def with_rows(self, row: jax.Array) -> RowGroups:
        """The same groups, of other ``[groups]`` rows."""
        runs = self.runs
        if runs is not None:
            of_entry = row.at[runs.group].get(
                mode="fill", fill_value=-1, indices_are_sorted=True
            )
            runs = runs._replace(row=of_entry)
        return self._replace(row=row, runs=runs)


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
    most = num_rows if most is None else most
    groups = min(rows.shape[0], num_rows, most)
    for_kernel = choose(implementation) == "mosaic_gpu"
    if for_kernel or num_rows > MARKS_PER_ENTRY * rows.shape[0]:
        return _group_sorted(rows, num_rows, groups, for_kernel)
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
    return RowGroups(row, None, Runs(order, key, key))


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


def _group_sorted(
    rows: jax.Array, num_rows: int, groups: int, for_kernel: bool
) -> RowGroups:
    """Groups by sorting: groups are numbered in the order of their rows."""
    keys = jnp.where((rows >= 0) & (rows < num_rows), rows, num_rows)
    key, order = sort_positions(keys, num_rows + 1)
    implementation = "mosaic_gpu" if for_kernel else "xla"
    number, first = number_runs(begins_run(key), groups, implementation=implementation)
    place = jnp.arange(groups, dtype=jnp.int32)
    first = jnp.where(place <= number[-1:], first, len(rows))
    row = key.at[first].get(mode="fill", fill_value=num_rows, indices_are_sorted=True)
    row = jnp.where(row < num_rows, row, num_rows + place)
    group = jnp.where(key < num_rows, number, groups)
    if for_kernel:
        return RowGroups(row, None, Runs(order, key, group))
    return RowGroups(row, _by_entry(order, group), None)


def _by_entry(order: jax.Array, of_sorted: jax.Array) -> jax.Array:
    """Puts ``[n]`` values of sorted entries in the order of the entries."""
    return jnp.zeros_like(of_sorted).at[order].set(of_sorted, unique_indices=True)
