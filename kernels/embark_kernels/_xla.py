"""The operations of this package in plain XLA.

The program differs where compilers differ. On CPU a fresh array costs more than the
arithmetic on it, so loops make sums a few at a time, in the cache, and no ``[ids,
width]`` array is made. A GPU would pay a launch for every iteration of such a loop, so
there it is a few gathers, which XLA fuses with their sums. A single gather of all rows
of long bags would be written to memory first.
"""

from __future__ import annotations

from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from embark_kernels.sizes import COLUMNS_AT_ONCE, TERMS_WORTH_SORTING

T = TypeVar("T")

BAGS_ALONE = 32
"""Up to so many bags, each has its own expression on CPU, so that its sum can be made
where it is used. With more, bags of equal length share one, to keep programs small."""
TERMS_AT_ONCE = 2048
"""Terms that an iteration of a loop on CPU adds; 512 KiB of rows of width 64."""


def sum_columns(
    table: jax.Array,
    ids: jax.Array,
    weights: jax.Array | None,
    lengths: tuple[int, ...],
) -> jax.Array:
    """Sums as ``lookup.pooled_lookup`` does: ``[batch, bags, width]`` float32."""
    ends = np.cumsum(lengths)
    by_length = [np.flatnonzero(np.equal(lengths, n)) for n in np.unique(lengths)]
    alone = [np.array([bag]) for bag in range(len(lengths))]

    def group_by_group(groups, sum_bags, table, ids, weights):
        sums = []
        for bags in groups:
            length = lengths[bags[0]]
            columns = ends[bags][:, None] + np.arange(-length, 0)

            def cut(matrix, columns=columns):
                first, count = int(columns.min(initial=0)), columns.size
                if np.array_equal(columns.ravel(), np.arange(first, first + count)):
                    neighbours = matrix[:, first : first + count]
                    return neighbours.reshape(len(matrix), *columns.shape)
                return matrix[:, columns]

            factors = None if weights is None else cut(weights)
            sums.append(sum_bags(table, cut(ids), factors))
        # In two dimensions, as models join them: XLA then makes one array of both.
        flat = jnp.concatenate([each.reshape(len(each), -1) for each in sums], axis=1)
        joined = flat.reshape(len(flat), len(lengths), -1)
        order = np.concatenate(groups)
        return joined[:, np.argsort(order)] if (np.diff(order) < 0).any() else joined

    def all_columns(table, ids, weights):
        total = jnp.zeros((*ids.shape[:2], table.shape[1]), jnp.float32)
        for first in range(0, ids.shape[2], COLUMNS_AT_ONCE):
            columns = slice(first, first + COLUMNS_AT_ONCE)
            rows = take(table, ids[..., columns])
            if weights is not None:
                rows *= weights[..., columns, None]
            total += rows.sum(axis=2)
        return total

    def a_few_columns(table, ids, weights):
        batch, bags, length = ids.shape
        iterations, rest = divmod(length, COLUMNS_AT_ONCE)

        def add(total, ids, weights):
            used = is_inside(ids, table.shape[0])[..., None]
            for k in range(ids.shape[2]):
                rows = table.at[ids[..., k]].get(mode="clip").astype(jnp.float32)
                if weights is not None:
                    rows *= weights[..., k, None]
                total += jnp.where(used[..., k, :], rows, 0)
            return total

        def add_next(i, total):
            cut = partial(
                lax.dynamic_slice_in_dim,
                start_index=rest + i * COLUMNS_AT_ONCE,
                slice_size=COLUMNS_AT_ONCE,
                axis=2,
            )
            return add(total, cut(ids), None if weights is None else cut(weights))

        total = jnp.zeros((batch, bags, table.shape[1]), jnp.float32)
        head = None if weights is None else weights[..., :rest]
        total = add(total, ids[..., :rest], head)
        return lax.fori_loop(0, iterations, add_next, total) if iterations else total

    return lax.platform_dependent(
        table,
        ids,
        weights,
        cpu=partial(
            group_by_group,
            alone if len(lengths) <= BAGS_ALONE else by_length,
            a_few_columns,
        ),
        default=partial(group_by_group, by_length, all_columns),
    )


def add_rows(
    sums: jax.Array,
    values: jax.Array,
    source: jax.Array,
    target: jax.Array,
    weights: jax.Array | None,
    ascending: bool = False,
) -> jax.Array:
    """Adds ``weights[i] * values[source[i]]`` to sum ``target[i]``.

    Args:
      sums: ``[size, width]`` float32.
      values: ``[m, width]``.
      source, target: ``[n]`` int32; out of range on either side adds nothing.
      weights: ``[n]`` float32 or None.
      ascending: whether the targets in range ascend.

    Returns:
      The new sums.
    """
    size = sums.shape[0]
    target = jnp.where(is_inside(source, values.shape[0]), target, size)
    target = beyond(target, size)

    def add(sums, values, source, target, weights, in_order=False):
        rows = values.at[source].get(mode="clip").astype(jnp.float32)
        if weights is not None:
            rows *= weights[:, None]
        return sums.at[target].add(rows, mode="drop", indices_are_sorted=in_order)

    def add_in_order(sums, values, source, target, weights):
        # Nothing is dropped: what is out of range adds zeros, so that targets ascend.
        used = target < size
        rows = take(values, jnp.where(used, source, -1))
        if weights is not None:
            rows *= jnp.where(used, weights, 0.0)[:, None]
        target = lax.cummax(jnp.where(used, target, 0))
        return sums.at[target].add(rows, indices_are_sorted=True)

    def a_few_at_once(sums, values, source, target, weights):
        terms = source.shape[0]
        count = min(terms, TERMS_AT_ONCE)
        iterations = -(-terms // count)

        def cut(array, fill):
            padding = iterations * count - terms
            padded = jnp.pad(array, (0, padding), constant_values=fill)
            return padded.reshape(iterations, -1)

        source, target = cut(source, 0), cut(target, size)
        weights = None if weights is None else cut(weights, 0)

        def add_next(i, sums):
            factor = None if weights is None else weights[i]
            return add(sums, values, source[i], target[i], factor)

        return lax.fori_loop(0, iterations, add_next, sums)

    def sort_and_add(sums, values, source, target, weights):
        # A GPU then reads and writes each sum once, not once for each term.
        factors = () if weights is None else (weights,)
        target, source, *factors = lax.sort((target, source, *factors), num_keys=1)
        weights = factors[0] if factors else None
        return add(sums, values, source, target, weights, in_order=True)

    default = add
    if ascending:
        default = add_in_order
    elif source.shape[0] >= TERMS_WORTH_SORTING * size:
        default = sort_and_add
    return lax.platform_dependent(
        sums, values, source, target, weights, cpu=a_few_at_once, default=default
    )


def zeros_after(values: T, shape: tuple[int, ...]) -> tuple[T, jax.Array]:
    """Makes zeros to add values to, but not before the values exist.

    Without this, XLA may make them early in a program, and hold them through all of a
    model's forward and backward.

    Args:
      values: an array, or a tree of arrays.
      shape: shape of the zeros.

    Returns:
      The unchanged values, and float32 zeros.
    """
    values, zero = lax.optimization_barrier((values, jnp.zeros((), jnp.float32)))
    return values, jnp.broadcast_to(zero, shape)


def take(table: jax.Array, rows: jax.Array) -> jax.Array:
    """Returns ``[..., width]`` float32 rows, zeros where out of range."""
    rows = beyond(rows, table.shape[0])
    return table.at[rows].get(mode="fill", fill_value=0).astype(jnp.float32)


def is_inside(index: jax.Array, size: int) -> jax.Array:
    """Returns whether each index is in ``[0, size)``."""
    return (index >= 0) & (index < size)


def beyond(index: jax.Array, size: int) -> jax.Array:
    """Moves negative indices beyond the end, where JAX drops or fills them."""
    return jnp.where(index < 0, size, index)
