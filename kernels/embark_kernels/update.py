"""Sparse updates: from gradients to updated rows, each touched row once, in place.

Three steps that can be used alone. ``grouping.group_rows`` sorts the entries of a batch
by row and needs no gradient. ``sum_groups`` sums the gradients of equal rows, which is
a pooled lookup into the gradients. ``update_rows`` applies the optimizer.
``update_from_bags`` is all three.

On a GPU the kernels use no atomics and add in a fixed order: the result is the same in
every run.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from embark_kernels._implementation import choose
from embark_kernels.config import UpdateConfig
from embark_kernels.grouping import RowGroups, group_rows
from embark_kernels.lookup import sum_bags
from embark_kernels.optimizers import RowMath, RowOptimizer, States

XLA_MATH = RowMath(jnp.sqrt, lambda column: column)


def update_rows(
    table: jax.Array,
    states: States,
    rows: jax.Array,
    gradients: jax.Array,
    optimizer: RowOptimizer,
    *,
    step: jax.typing.ArrayLike = 1,
    mean_square: jax.Array | None = None,
    implementation: str | None = None,
    config: UpdateConfig | None = None,
) -> tuple[jax.Array, States]:
    """Applies the optimizer to listed rows; in place where arguments are donated.

    Args:
      table: ``[rows, width]`` float32 or bfloat16.
      states: ``[rows, state width]`` float32, by name; see ``init_states``.
      rows: ``[listed]`` int32, each row once; out of range where nothing is to be done.
      gradients: ``[listed, width]`` float32, summed over the batch.
      optimizer: the rule.
      step: ``[]`` number of this step, from 1.
      mean_square: ``[listed]`` mean of gradient² over whole rows, for a row-wise rule
        whose rows go on elsewhere; None means that the table has whole rows.
      implementation: "xla", "mosaic_gpu", or None for the best that runs here.
      config: of the kernel; None for its heuristic.

    Returns:
      The new table and states.

    Raises:
      ValueError: if the implementation is unknown or cannot handle the table.
    """
    implementation = choose(implementation, table)
    if rows.shape[0] == 0 or table.shape[0] == 0:
        return table, dict(states)
    if optimizer.row_wise and mean_square is None:
        mean_square = jnp.mean(gradients * gradients, axis=1)
    if not optimizer.row_wise:
        mean_square = None
    factors = optimizer.step_factors(jnp.asarray(step))
    if implementation == "mosaic_gpu":
        # Imported here: what runs in plain XLA must not need Mosaic.
        from embark_kernels._update_kernel import update_rows_mosaic_gpu

        config = config or UpdateConfig.heuristic(table.shape[1])
        return update_rows_mosaic_gpu(
            table, states, rows, gradients, mean_square, factors, optimizer, config
        )

    # All different, as the stores below are told, also where out of range.
    beyond = table.shape[0] + jnp.arange(rows.shape[0], dtype=jnp.int32)
    rows = jnp.where((rows >= 0) & (rows < table.shape[0]), rows, beyond)

    def take(array):
        return array.at[rows].get(mode="fill", fill_value=0).astype(jnp.float32)

    def put(array, values):
        values = values.astype(array.dtype)
        return array.at[rows].set(values, mode="drop", unique_indices=True)

    change, new_states = optimizer.update(
        {name: take(state) for name, state in states.items()},
        gradients,
        None if mean_square is None else mean_square[:, None],
        factors,
        XLA_MATH,
    )
    if table.dtype == jnp.float32:
        # Makes no array of the old rows.
        table = table.at[rows].add(-change, mode="drop", unique_indices=True)
    else:  # the change itself must not be rounded
        table = put(table, take(table) - change)
    return table, {name: put(states[name], new) for name, new in new_states.items()}


def sum_groups(
    values: jax.Array,
    groups: RowGroups,
    source: jax.Array,
    weights: jax.Array | None = None,
    *,
    implementation: str | None = None,
) -> jax.Array:
    """Sums values over the groups of ``group_rows``, in a fixed order.

    Args:
      values: ``[m, width]`` float32 or bfloat16, such as the gradients of bags.
      groups: of ``n`` entries.
      source: ``[n]`` int32 for each entry, as it was given to ``group_rows``, its place
        in ``values``; out of range where padded.
      weights: ``[n]`` float32 factors, or None.
      implementation: "xla", "mosaic_gpu", or None for the best that runs here.

    Returns:
      ``[groups, width]`` float32, to go with ``groups.row``.

    Raises:
      ValueError: if the implementation is unknown or cannot handle the values.
    """
    if weights is not None:
        weights = weights[groups.order]
    source = source[groups.order]
    sums = sum_bags(
        values, source, groups.offsets, weights, implementation=implementation
    )
    if groups.part.shape[0] == 0:
        return sums
    added = sum_bags(
        sums, groups.part, groups.part_offsets, implementation=implementation
    )
    return sums.at[groups.part_target].add(added, mode="drop", unique_indices=True)


def update_from_bags(
    table: jax.Array,
    states: States,
    ids: jax.Array,
    gradient: jax.Array,
    optimizer: RowOptimizer,
    weights: jax.Array | None = None,
    *,
    hotness: Sequence[int] | None = None,
    step: jax.typing.ArrayLike = 1,
    implementation: str | None = None,
) -> tuple[jax.Array, States]:
    """Updates the rows that ``pooled_lookup`` summed, from the gradient of its sums.

    Args:
      table, states, optimizer, step: as of ``update_rows``.
      ids, weights, hotness: as of ``pooled_lookup``.
      gradient: of the loss by the pooled sums, ``[batch, len(hotness), width]``;
        ``[batch, width]`` if ``hotness`` is None.
      implementation: "xla", "mosaic_gpu", or None for the best that runs here.

    Returns:
      The new table and states.

    Raises:
      ValueError: if the implementation is unknown or cannot handle the table.
    """
    implementation = choose(implementation, table)
    (batch, columns), num_rows = ids.shape, table.shape[0]
    lengths = (columns,) if hotness is None else tuple(hotness)
    column_bag = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    groups = group_rows(ids.reshape(-1), num_rows)
    if implementation == "mosaic_gpu":
        line = jnp.arange(batch, dtype=jnp.int32)[:, None] * len(lengths)
        bag = jnp.where(ids < 0, -1, line + jnp.asarray(column_bag[None]))
        sums = sum_groups(
            gradient.reshape(batch * len(lengths), -1),
            groups,
            bag.reshape(-1),
            None if weights is None else weights.reshape(-1),
            implementation=implementation,
        )
    else:
        gradient = gradient.reshape(batch, len(lengths), -1)
        sums = _sum_by_columns(gradient, groups, column_bag, weights)
    return update_rows(
        table,
        states,
        groups.row,
        sums,
        optimizer,
        step=step,
        implementation=implementation,
    )


def init_states(optimizer: RowOptimizer, table: jax.Array) -> States:
    """``[rows, state width]`` float32 states, by name."""
    rows, width = table.shape
    return {
        name: jnp.full((rows, state_width), optimizer.initial_state, jnp.float32)
        for name, state_width in optimizer.state_widths(width).items()
    }


def _sum_by_columns(
    gradient: jax.Array,
    groups: RowGroups,
    column_bag: np.ndarray,
    weights: jax.Array | None,
) -> jax.Array:
    """As ``sum_groups``, of ``[batch, bags, width]``: column by column, so that no
    ``[entries, width]`` array is made."""
    batch, _, width = gradient.shape
    order = groups.order
    inverse = jnp.zeros(order.shape, jnp.int32)
    inverse = inverse.at[order].set(groups.group, unique_indices=True)
    inverse = inverse.reshape(batch, -1)

    def add_column(column, sums):
        values = gradient[:, jnp.asarray(column_bag)[column]].astype(jnp.float32)
        if weights is not None:
            values = values * weights[:, column, None]
        return sums.at[inverse[:, column]].add(values)

    sums = jnp.zeros((groups.row.shape[0], width), jnp.float32)
    return lax.fori_loop(0, column_bag.size, add_column, sums)
