"""What plain XLA does for the operations of this package.

Where compilers differ, so does the program. On CPU a fresh array costs more than the
arithmetic on it, so sums are made a piece at a time, in loops whose working set stays
in the cache, and no ``[entries, width]`` array is made. A GPU would pay for the launch
of every turn of such a loop: there it is one gather that XLA fuses with the sum.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

ENTRIES_AT_ONCE = 2048
"""That a turn of a loop on CPU adds; 512 KiB of rows of width 64."""


def sum_columns(
    table: jax.Array,
    ids: jax.Array,
    weights: jax.Array | None,
    lengths: tuple[int, ...],
) -> jax.Array:
    """``[batch, bags, width]`` float32 sums; see ``lookup.pooled_lookup``."""
    arguments = table, ids, weights

    def column_by_column(table, ids, weights):
        bag = jnp.asarray(np.repeat(np.arange(len(lengths), dtype=np.int32), lengths))
        used = is_inside(ids, table.shape[0]).T
        row = ids.T
        factor = None if weights is None else weights.T

        def add_column(column, sums):
            rows = table.at[row[column]].get(mode="clip").astype(jnp.float32)
            if factor is not None:
                rows *= factor[column][:, None]
            rows = jnp.where(used[column][:, None], rows, 0)
            return sums.at[:, bag[column]].add(rows)

        sums = jnp.zeros((ids.shape[0], len(lengths), table.shape[1]), jnp.float32)
        return lax.fori_loop(0, ids.shape[1], add_column, sums)

    def length_by_length(table, ids, weights):
        starts = np.cumsum(lengths) - lengths
        order, sums = [], []
        for length in np.unique(lengths):
            bags = np.flatnonzero(np.equal(lengths, length))
            columns = starts[bags][:, None] + np.arange(length)
            rows = take(table, ids[:, columns])
            if weights is not None:
                rows *= weights[:, columns, None]
            order.append(bags)
            sums.append(rows.sum(axis=2))
        return jnp.concatenate(sums, axis=1)[:, np.argsort(np.concatenate(order))]

    return lax.platform_dependent(
        *arguments, cpu=column_by_column, default=length_by_length
    )


def add_rows(
    values: jax.Array,
    source: jax.Array,
    target: jax.Array,
    weights: jax.Array | None,
    size: int,
) -> jax.Array:
    """Adds ``weights[i] * values[source[i]]`` to sum ``target[i]``.

    Args:
      values: ``[m, width]``.
      source, target: ``[n]`` int32; what is out of range on either side adds nothing.
      weights: ``[n]`` float32 or None.
      size: static number of sums.

    Returns:
      ``[size, width]`` float32.
    """
    target = jnp.where(is_inside(source, values.shape[0]), target, size)
    target = beyond(target, size)
    sums = jnp.zeros((size, values.shape[1]), jnp.float32)

    def add(sums, values, source, target, weights):
        rows = values.at[source].get(mode="clip").astype(jnp.float32)
        if weights is not None:
            rows *= weights[:, None]
        return sums.at[target].add(rows, mode="drop")

    def a_few_at_once(sums, values, source, target, weights):
        entries = source.shape[0]
        count = min(entries, ENTRIES_AT_ONCE)
        turns = -(-entries // count)

        def cut(array, fill):
            padding = turns * count - entries
            return jnp.pad(array, (0, padding), constant_values=fill).reshape(turns, -1)

        source, target = cut(source, 0), cut(target, size)
        weights = None if weights is None else cut(weights, 0)

        def turn(i, sums):
            factor = None if weights is None else weights[i]
            return add(sums, values, source[i], target[i], factor)

        return lax.fori_loop(0, turns, turn, sums)

    arguments = sums, values, source, target, weights
    return lax.platform_dependent(*arguments, cpu=a_few_at_once, default=add)


def take(table: jax.Array, rows: jax.Array) -> jax.Array:
    """``[..., width]`` float32 rows, zeros where out of range."""
    rows = beyond(rows, table.shape[0])
    return table.at[rows].get(mode="fill", fill_value=0).astype(jnp.float32)


def is_inside(index: jax.Array, size: int) -> jax.Array:
    """Whether each index is in ``[0, size)``."""
    return (index >= 0) & (index < size)


def beyond(index: jax.Array, size: int) -> jax.Array:
    """Negative indices moved beyond the end, where JAX drops or fills them."""
    return jnp.where(index < 0, size, index)
