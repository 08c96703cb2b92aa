"""Groups the entries of a batch by the row that they touch.

Nothing here depends on parameters, so it can be done a step ahead. An *entry* is an
element of a flat array of ids.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from embark_kernels._implementation import Implementation, choose
from embark_kernels.runs import begins_run, number_runs, sort_positions

MARKS_PER_ENTRY = 32
"""On CPU, rows are marked instead of sorted if a table has at most this many rows for
each entry of a batch: then the marks of all rows take less memory than the sums of the
entries."""


class Runs(NamedTuple):
    """Entries ordered by group. On CPU, plain XLA sums them as they come, so there they
    are not ordered.

    Attributes:
      order: ``[n]`` entries in that order.
      row: ``[n]`` row of each of them, out of range where padded; None for plain XLA.
      group: ``[n]`` group of each of them; ``groups`` where padded.
    """

    order: jax.Array
    row: jax.Array | None
    group: jax.Array


class RowGroups(NamedTuple):
    """Entries grouped by the row they touch, for ``update.sum_groups``.

    Attributes:
      row: ``[groups]`` row of each group, each once; where unused, unique values at or
        beyond the number of rows.
      runs: the entries by group.
    """

    row: jax.Array
    runs: Runs

    @property
    def for_kernel(self) -> bool:
        """Whether they are for the kernel, or else for plain XLA."""
        return self.runs.row is not None

    @property
    def group(self) -> jax.Array:
        """``[n]`` group of each entry's row; ``groups`` where padded."""
        order, _, group = self.runs
        if self.for_kernel:
            return _by_entry(order, group)
        return lax.platform_dependent(
            order, group, cpu=lambda _, group: group, default=_by_entry
        )

    def with_rows(self, row: jax.Array) -> RowGroups:
        """The same groups, of other ``[groups]`` rows."""
        runs = self.runs
        if self.for_kernel:
            of_entry = row.at[runs.group].get(
                mode="fill", fill_value=-1, indices_are_sorted=True
            )
            runs = runs._replace(row=of_entry)
        return RowGroups(row, runs)


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
    if choose(implementation) == "mosaic_gpu":
        row, order, key, group = _sorted(rows, num_rows, groups, "mosaic_gpu")
        return RowGroups(row, Runs(order, key, group))

    def as_they_come(rows):
        if num_rows <= MARKS_PER_ENTRY * rows.shape[0]:
            row, group = _marked(rows, num_rows, groups)
        else:
            row, order, _, group = _sorted(rows, num_rows, groups, "xla")
            group = _by_entry(order, group)
        return row, jnp.arange(len(group), dtype=jnp.int32), group

    def in_order(rows):
        row, order, _, group = _sorted(rows, num_rows, groups, "xla")
        return row, order, group

    row, order, group = lax.platform_dependent(rows, cpu=as_they_come, default=in_order)
    return RowGroups(row, Runs(order, None, group))


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
      runs: the entries by target, if known; otherwise they are sorted where needed.
      implementation: the implementation that will sum the groups; see
        ``update.sum_groups``.
    """
    row = jnp.arange(size, dtype=jnp.int32)
    group = jnp.where((target >= 0) & (target < size), target, size)

    def in_order(group):
        if runs is not None:
            return runs.order, runs.group
        key, order = sort_positions(group, size + 1)
        return order, key

    if choose(implementation) == "mosaic_gpu":
        order, group = in_order(group)
        return RowGroups(row, Runs(order, group, group))
    order, group = lax.platform_dependent(
        group,
        cpu=lambda group: (jnp.arange(len(group), dtype=jnp.int32), group),
        default=in_order,
    )
    return RowGroups(row, Runs(order, None, group))


def _marked(rows: jax.Array, num_rows: int, groups: int) -> tuple[jax.Array, jax.Array]:
    """Groups without sorting: marks each row with its first entry. Groups are numbered
    in the order of their rows' first entries, so sums into them pass through memory in
    order. Returns their rows, and the group of each entry."""
    n = rows.shape[0]
    position = jnp.arange(n, dtype=jnp.int32)
    present = (rows >= 0) & (rows < num_rows)
    key = jnp.where(present, rows, num_rows)
    marks = jnp.full(num_rows, n, jnp.int32).at[key].min(position, mode="drop")
    first = marks.at[key].get(mode="fill", fill_value=n)
    rank = jnp.cumsum(first == position, dtype=jnp.int32) - 1
    group = rank.at[first].get(mode="fill", fill_value=groups)
    row = num_rows + jnp.arange(groups, dtype=jnp.int32)
    return row.at[group].set(key, mode="drop"), group


def _sorted(
    rows: jax.Array, num_rows: int, groups: int, implementation: Implementation
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Groups by sorting: groups are numbered in the order of their rows. Returns their
    rows, the entries in order, and row and group of each of these."""
    keys = jnp.where((rows >= 0) & (rows < num_rows), rows, num_rows)
    key, order = sort_positions(keys, num_rows + 1)
    number, first = number_runs(begins_run(key), groups, implementation=implementation)
    place = jnp.arange(groups, dtype=jnp.int32)
    first = jnp.where(place <= number[-1:], first, len(rows))
    row = key.at[first].get(mode="fill", fill_value=num_rows, indices_are_sorted=True)
    row = jnp.where(row < num_rows, row, num_rows + place)
    return row, order, key, jnp.where(key < num_rows, number, groups)


def _by_entry(order: jax.Array, of_sorted: jax.Array) -> jax.Array:
    """Puts ``[n]`` values of sorted entries in the order of the entries."""
    return jnp.zeros_like(of_sorted).at[order].set(of_sorted, unique_indices=True)
