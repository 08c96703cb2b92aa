"""The Mosaic GPU kernel of ``update_rows``: table and states are updated in place.

A program updates a few of the listed rows, in chunks: it reads all rows, states and
gradients of a chunk, then applies the rule and writes row by row. Each row is listed
once, so no two programs update the same row.
"""

from __future__ import annotations

import operator
from functools import reduce

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from embark_kernels._mosaic import (
    Rows,
    is_inside,
    moves,
    rows_of_own,
    run_updating,
    sqrt,
    update_blocks,
)
from embark_kernels.optimizers import RowMath, RowOptimizer, States


def update_rows_mosaic_gpu(
    table: jax.Array,
    states: States,
    rows: jax.Array,
    gradients: jax.Array,
    mean_square: jax.Array | None,
    factors: tuple[jax.Array, ...],
    optimizer: RowOptimizer,
    noise: jax.Array | None,
) -> tuple[jax.Array, States]:
    """Updates rows as ``update.update_rows`` does, if there are some, and some listed.

    Args:
      mean_square: ``[listed]`` for a row-wise rule.
      factors: factors of the step.
      noise: ``[listed]`` uint32 noise of the rows, or None.
    """
    num_rows, width = table.shape
    listed = rows.shape[0]
    rows_per_block, chunk = update_blocks(width)
    row_access = Rows(width)
    math = RowMath(sqrt, jnp.where, row_access.fill)
    names = list(states)
    noises = row_access.noises(noise)

    def update_rows_kernel(program, updated_refs, *read_refs):
        table_ref, *state_refs = updated_refs
        rows_ref, gradients_ref, *rest = read_refs
        square_refs = [] if mean_square is None else [rest.pop(0)]
        noise_refs, factor_refs = rest[: len(noises)], rest[len(noises) :]
        factor = tuple(factor_refs[0][i] for i in range(len(factors)))
        first = program * rows_per_block
        end = jnp.minimum(first + rows_per_block, listed)

        def update_chunk(index, row, used):
            row = rows_of_own(row, used)
            old = [row_access.load(table_ref, r) for r in row]
            gradient = [row_access.load(gradients_ref, i) for i in index]
            old_states = [
                {
                    name: row_access.load_any(ref, r)
                    for name, ref in zip(names, state_refs, strict=True)
                }
                for r in row
            ]
            square = [ref[i] for ref in square_refs for i in index] or [None] * chunk
            row_access.all_have_read()
            for i in range(chunk):
                left, change, new_states = optimizer.update(
                    old[i],
                    old_states[i],
                    gradient[i],
                    square[i],
                    factor,
                    math,
                )

                @pl.when(used[i])
                def _(i=i, left=left, change=change, new_states=new_states):
                    new = row_access.rounded(left - change, noise_refs, index[i])
                    row_access.store(table_ref, row[i], new)
                    for name, ref in zip(names, state_refs, strict=True):
                        row_access.store_any(ref, row[i], new_states[name])

        @pl.loop(0, lax.div(end - first + (chunk - 1), jnp.int32(chunk)))
        def _(number):
            begin = first + number * chunk
            index = [jnp.minimum(begin + i, listed - 1) for i in range(chunk)]
            row = [rows_ref[i] for i in index]
            used = [
                (begin + i < end) & is_inside(row[i], num_rows) for i in range(chunk)
            ]
            # Most listed rows may be unused, and then they are consecutive.
            any_used = reduce(operator.or_, used)
            pl.when(any_used)(lambda: update_chunk(index, row, used))

    read = [rows, gradients]
    if mean_square is not None:
        read.append(mean_square)
    read += noises
    if factors:
        read.append(jnp.stack(factors))
    programs = pl.cdiv(listed, rows_per_block)
    updated = [table, *states.values()]
    updated_bytes = listed * sum(a.shape[1] * a.dtype.itemsize for a in updated)
    read_bytes = sum(array.size * array.dtype.itemsize for array in read)
    with moves(read_bytes + updated_bytes, updated_bytes):
        table, *new_states = run_updating(
            update_rows_kernel, updated, read, row_access, programs
        )
    return table, dict(zip(names, new_states, strict=True))
