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

from embark_kernels._mosaic import Rows, moves, run_in_place, sqrt
from embark_kernels.config import UpdateConfig
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
    config: UpdateConfig,
) -> tuple[jax.Array, States]:
    """See ``update.update_rows``; the table has rows, and some are listed.

    Args:
      mean_square: ``[listed]`` for a row-wise rule.
      factors: factors of the step.
      noise: ``[listed]`` uint32 noise of the rows, or None.
    """
    (num_rows, width), listed = table.shape, rows.shape[0]
    chunk = config.rows_in_flight
    row_access = Rows(width)
    math = RowMath(sqrt, jnp.where, row_access.fill)
    names = list(states)
    noises = row_access.noises(noise)

    def update_rows_kernel(program, updated_refs, *read_refs):
        table_ref, *state_refs = updated_refs
        rows_ref, gradients_ref, *rest = read_refs
        square_refs = [] if mean_square is None else [rest.pop(0)]
        noise_refs, rest = rest[: len(noises)], rest[len(noises) :]
        factor = tuple(rest[0][i] for i in range(len(factors)))
        first = program * config.rows_per_block
        end = jnp.minimum(first + config.rows_per_block, listed)

        def update_chunk(place, listed_row, used):
            # Unused entries read row 0, which is harmless.
            row = [
                jnp.where(use, each, 0)
                for use, each in zip(used, listed_row, strict=True)
            ]
            old = [row_access.load(table_ref, each) for each in row]
            gradient = [row_access.load(gradients_ref, each) for each in place]
            old_state = [
                [row_access.load_any(ref, each) for ref in state_refs] for each in row
            ]
            square = [[ref[each] for ref in square_refs] for each in place]
            row_access.all_have_read()
            for i in range(chunk):
                left, change, new_states = optimizer.update(
                    old[i],
                    dict(zip(names, old_state[i], strict=True)),
                    optimizer.full_gradient(old[i], gradient[i]),
                    square[i][0] if square_refs else None,
                    factor,
                    math,
                )

                @pl.when(used[i])
                def _(i=i, left=left, change=change, new_states=new_states):
                    new = row_access.rounded(left - change, noise_refs, place[i])
                    row_access.store(table_ref, row[i], new)
                    for name, ref in zip(names, state_refs, strict=True):
                        row_access.store_any(ref, row[i], new_states[name])

        @pl.loop(0, lax.div(end - first + (chunk - 1), jnp.int32(chunk)))
        def _(index):
            place = [first + index * chunk + i for i in range(chunk)]
            inside = [jnp.minimum(each, listed - 1) for each in place]
            listed_row = [rows_ref[each] for each in inside]
            used = [
                (place[i] < end) & (row >= 0) & (row < num_rows)
                for i, row in enumerate(listed_row)
            ]
            # Most listed rows may be unused, and then they are consecutive.
            any_used = reduce(operator.or_, used)
            pl.when(any_used)(lambda: update_chunk(inside, listed_row, used))

    read = [rows, gradients]
    if mean_square is not None:
        read.append(mean_square)
    read += noises
    if factors:
        read.append(jnp.stack(factors))
    programs = pl.cdiv(listed, config.rows_per_block)
    updated = [table, *states.values()]
    updated_bytes = listed * sum(a.shape[1] * a.dtype.itemsize for a in updated)
    read_bytes = sum(each.size * each.dtype.itemsize for each in read)
    with moves(read_bytes + updated_bytes, updated_bytes):
        table, *new_states = run_in_place(
            update_rows_kernel, updated, read, row_access, programs
        )
    return table, dict(zip(names, new_states, strict=True))
