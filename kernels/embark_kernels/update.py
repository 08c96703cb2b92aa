"""Sparse updates: from gradients to updated rows, each touched row once, in place.

The update has three steps, each of which can be used alone. ``grouping.group_rows``
groups the ids of a batch by row and needs no gradient. ``sum_groups`` sums the
gradients of equal rows. ``update_rows`` applies the optimizer. ``sum_and_update`` does
the last two, in one kernel on a GPU.

On a GPU the kernels use no atomics and add in a fixed order, so the result is the same
in every run.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from embark_kernels._implementation import choose
from embark_kernels._xla import add_rows, is_inside, take, zeros_after
from embark_kernels.grouping import RowGroups, SortedIds
from embark_kernels.optimizers import RowMath, RowOptimizer, States
from embark_kernels.rounding import column_noise, random_bits, round_stochastically

XLA_MATH = RowMath(jnp.sqrt, jnp.where, lambda column: column)
UPDATED_AT_ONCE = 8192
"""Rows that an iteration of a loop on CPU updates: see ``_xla``."""


def update_rows(
    table: jax.Array,
    states: States,
    rows: jax.Array,
    gradients: jax.Array,
    optimizer: RowOptimizer,
    *,
    step: jax.typing.ArrayLike = 1,
    mean_square: jax.Array | None = None,
    noise: jax.Array | None = None,
    implementation: str | None = None,
) -> tuple[jax.Array, States]:
    """Applies the optimizer to listed rows; in place if arguments are donated.

    Args:
      table: ``[rows, width]`` float32 or bfloat16; float16 in plain XLA alone.
      states: ``[rows, state width]`` float32, by name; see ``init_states``.
      rows: ``[listed]`` int32, each row once; out of range where unused.
      gradients: ``[listed, width]`` float32, summed over the batch.
      optimizer: the rule.
      step: ``[]`` number of this step, from 1.
      mean_square: ``[listed]`` mean of gradient² over whole rows, for a row-wise rule
        whose rows continue in other tables; None means that the table has
        whole rows.
      noise: ``[listed]`` uint32 random number of each row, for stochastic rounding to a
        table of 16 bits; None rounds to the nearest.
      implementation: "xla", "mosaic_gpu", or None: see ``choose``.

    Returns:
      The new table and states.

    Raises:
      ValueError: if the implementation is unknown or cannot handle the table.
    """
    implementation = choose(implementation, table.shape[1], table.dtype)
    if rows.shape[0] == 0 or table.shape[0] == 0:
        return table, dict(states)
    factors = _step_factors(optimizer, step)
    if implementation == "mosaic_gpu":
        # Imported here, so that plain XLA does not need Mosaic.
        from embark_kernels._update_kernel import update_rows_mosaic_gpu

        if optimizer.row_wise and mean_square is None:
            mean_square = _mean_square(gradients)
        return update_rows_mosaic_gpu(
            table,
            states,
            rows,
            gradients,
            mean_square,
            factors,
            optimizer,
            noise,
        )
    at_once, in_blocks = (
        partial(update, optimizer) for update in (_update_at_once, _update_in_blocks)
    )
    # XLA on CPU converts all of a 16-bit table for each of its stores: one is enough.
    on_cpu = in_blocks if table.dtype == jnp.float32 else at_once
    return lax.platform_dependent(
        table,
        dict(states),
        rows,
        gradients,
        mean_square,
        factors,
        noise,
        cpu=on_cpu,
        default=at_once,
    )


def _update_at_once(
    optimizer, table, states, rows, gradients, mean_square, factors, noise
):
    """Updates all rows in plain XLA; arguments are those of ``update_rows``, and the
    factors of the step."""
    old = take(table, rows) if optimizer.reads_row else None
    if optimizer.row_wise and mean_square is None:
        mean_square = _mean_square(gradients)
    old, change, new_states = optimizer.update(
        old,
        {name: take(state, rows) for name, state in states.items()},
        gradients,
        None if mean_square is None else mean_square[:, None],
        factors,
        XLA_MATH,
    )
    # All are unique, as the stores below assume, also those out of range.
    unused = table.shape[0] + jnp.arange(rows.shape[0], dtype=jnp.int32)
    rows = jnp.where(is_inside(rows, table.shape[0]), rows, unused)

    def put(array, values):
        return array.at[rows].set(values, mode="drop", unique_indices=True)

    if old is None and table.dtype == jnp.float32:
        # This makes no array of the old rows.
        table = table.at[rows].add(-change, mode="drop", unique_indices=True)
    else:  # the change itself must not be rounded
        new = (take(table, rows) if old is None else old) - change
        table = put(table, _rounded(new, noise, table.dtype))
    return table, {name: put(states[name], new) for name, new in new_states.items()}


def _update_in_blocks(
    optimizer, table, states, rows, gradients, mean_square, factors, noise
):
    """Updates ``UPDATED_AT_ONCE`` rows at a time; arguments as in
    ``_update_at_once``."""
    listed = rows.shape[0]
    count = min(listed, UPDATED_AT_ONCE)
    position = jnp.arange(listed, dtype=jnp.int32)
    used = is_inside(rows, table.shape[0])
    end = jnp.max(jnp.where(used, position + 1, 0))

    def update_block(i, updated):
        # The last block begins early; the rows it shares with the one before are done.
        first = jnp.minimum(i * count, listed - count)
        cut = partial(lax.dynamic_slice_in_dim, start_index=first, slice_size=count)
        table, states = updated
        return _update_at_once(
            optimizer,
            table,
            states,
            jnp.where(cut(position) < i * count, -1, cut(rows)),
            cut(gradients),
            None if mean_square is None else cut(mean_square),
            factors,
            None if noise is None else cut(noise),
        )

    blocks = (end + (count - 1)) // count
    return lax.fori_loop(0, blocks, update_block, (table, states))


@jax.named_scope("gradients")
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
      groups: groups of ``n`` ids, from ``group_rows`` or ``group_targets``.
      source: ``[n]`` int32 row of ``values`` for each id; out of range where padded.
      weights: ``[n]`` float32 factors, or None.
      implementation: "xla", "mosaic_gpu", or None: see ``choose``.

    Returns:
      ``[groups, width]`` float32, to go with ``groups.row``; zeros where unused.

    Raises:
      ValueError: if the implementation is unknown or cannot handle the values, or the
        groups were made for another implementation.
    """
    implementation = choose(implementation, values.shape[1], values.dtype)
    if implementation == "xla":
        values, sums = zeros_after(values, (groups.row.shape[0], values.shape[1]))
        return add_rows(sums, values, source, groups.group, weights)
    sorted_ids = groups.sorted_ids
    if sorted_ids is None:
        raise ValueError(
            "mosaic_gpu: the groups were made for xla; group_rows and sum_groups must "
            "be given the same implementation"
        )
    sums = jnp.zeros((groups.row.shape[0], values.shape[1]), jnp.float32)
    if source.shape[0] == 0 or values.shape[0] == 0 or sums.shape[0] == 0:
        return sums
    # Imported here, so that plain XLA does not need Mosaic.
    from embark_kernels._segments_kernel import sum_segments

    source, weights = _in_order(sorted_ids, source, weights)
    return sum_segments(sums, values, sorted_ids.group, source, weights)


def sum_and_update(
    table: jax.Array,
    states: States,
    groups: RowGroups,
    values: jax.Array,
    source: jax.Array,
    optimizer: RowOptimizer,
    weights: jax.Array | None = None,
    *,
    apply: jax.typing.ArrayLike = True,
    step: jax.typing.ArrayLike = 1,
    noise: jax.Array | None = None,
    implementation: str | None = None,
) -> tuple[jax.Array, States]:
    """Applies ``update_rows`` to the sums of ``sum_groups``, which the kernel does not
    write to memory. The table must have whole rows if the rule is row-wise.

    Args:
      table, states, optimizer, step: as in ``update_rows``.
      groups: groups of ``table``'s rows, from ``group_rows``.
      values, source, weights: as in ``sum_groups``.
      apply: ``[]`` bool; if false, nothing changes.
      noise: as in ``update_rows``, for ``groups.row``.
      implementation: "xla", "mosaic_gpu", or None: see ``choose``.

    Returns:
      The new table and states.

    Raises:
      ValueError: as in ``update_rows`` and ``sum_groups``.
    """
    implementation = choose(implementation, table.shape[1], table.dtype)
    sorted_ids = groups.sorted_ids
    if implementation == "xla" or sorted_ids is None:
        return update_rows(
            table,
            states,
            jnp.where(apply, groups.row, -1),
            sum_groups(values, groups, source, weights, implementation=implementation),
            optimizer,
            step=step,
            noise=noise,
            implementation=implementation,
        )
    if source.shape[0] == 0 or values.shape[0] == 0 or table.shape[0] == 0:
        return table, dict(states)
    from embark_kernels._segments_kernel import update_segments

    source, weights = _in_order(sorted_ids, source, weights)
    return update_segments(
        table,
        states,
        values,
        jnp.where(apply, sorted_ids.row, -1),
        source,
        weights,
        _step_factors(optimizer, step),
        optimizer,
        None if noise is None else noise.at[sorted_ids.group].get(mode="clip"),
    )


def _in_order(
    sorted_ids: SortedIds, source: jax.Array, weights: jax.Array | None
) -> tuple[jax.Array, jax.Array | None]:
    """Returns the source and the weight of the sorted ids."""
    order = sorted_ids.order
    return source[order], None if weights is None else weights[order]


def init_states(optimizer: RowOptimizer, table: jax.Array) -> States:
    """Returns ``[rows, state width]`` float32 states, by name."""
    rows, width = table.shape
    return {
        name: jnp.full((rows, state_width), optimizer.initial_state, jnp.float32)
        for name, state_width in optimizer.state_widths(width).items()
    }


def _rounded(
    values: jax.Array, noise: jax.Array | None, dtype: jax.typing.DTypeLike
) -> jax.Array:
    if noise is None:
        return values.astype(dtype)
    columns = column_noise(jnp.arange(values.shape[1], dtype=jnp.int32))
    bits = random_bits(noise[:, None] + columns[None])
    return round_stochastically(values, bits, dtype)


def _step_factors(
    optimizer: RowOptimizer, step: jax.typing.ArrayLike
) -> tuple[jax.Array, ...]:
    factors = optimizer.step_factors(jnp.asarray(step))
    return tuple(jnp.asarray(factor, jnp.float32) for factor in factors)


def _mean_square(gradients: jax.Array) -> jax.Array:
    return jnp.mean(gradients * gradients, axis=1)
