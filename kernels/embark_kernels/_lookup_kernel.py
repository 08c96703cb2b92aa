"""The Mosaic GPU kernel of sums of table rows.

A program sums a few consecutive bags, whose ids are consecutive, too. It reads these
ids in chunks: first the row numbers of a chunk, then all its rows, before it adds up
the first one. It writes a bag after its last id. So the number of rows in flight does
not depend on the lengths of bags, and an empty bag is simply written.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.typing import DTypeLike

from embark_kernels._mosaic import (
    Rows,
    chunk_of,
    is_inside,
    lookup_blocks,
    moves,
    run,
)

NEVER = 2**31 - 1
"""Beyond each id of a batch."""


def sum_bags_mosaic_gpu(
    table: jax.Array,
    rows: jax.Array,
    offsets: jax.Array,
    weights: jax.Array | None,
    dtype: DTypeLike,
) -> jax.Array:
    """Sums bags as ``lookup.sum_bags_between`` does, if there are rows and ids."""
    num_rows, width = table.shape
    ids = rows.shape[0]
    senders, bags = offsets.shape[0], offsets.shape[1] - 1
    bags_per_block, rows_in_flight = lookup_blocks(width, ids, senders * bags)
    programs_per_sender = pl.cdiv(bags, bags_per_block)
    chunk = min(rows_in_flight, ids)
    row_access = Rows(width)

    def sum_bags_kernel(program, *refs):
        table_ref, rows_ref, offsets_ref, *weights_refs, out_ref = refs
        sender = lax.div(program, jnp.int32(programs_per_sender))
        first_bag = lax.rem(program, jnp.int32(programs_per_sender))
        first_bag *= bags_per_block
        end_bag = jnp.minimum(first_bag + bags_per_block, bags)

        def offset(bag):
            return offsets_ref[sender * (bags + 1) + bag]

        def end_of(bag):
            """Where a bag of this program ends; no id reaches the end of another."""
            end = offset(jnp.minimum(bag + 1, bags))
            return jnp.where(bag < end_bag, end, NEVER)

        first, end = offset(first_bag), offset(end_bag)
        zeros = row_access.zeros()

        def write_bags_before(index, state):
            """Writes all bags that end at id ``index`` or before."""

            def write(state):
                bag, _, total = state
                row_access.store(out_ref, sender * bags + bag, total)
                return bag + 1, end_of(bag + 1), zeros

            return lax.while_loop(lambda state: state[1] <= index, write, state)

        def add_chunk(number, state):
            start = first + number * chunk
            index, in_range = chunk_of(start, end, chunk, ids)
            row = [rows_ref[i] for i in index]
            used = [in_range[i] & is_inside(row[i], num_rows) for i in range(chunk)]
            values = [
                row_access.load(table_ref, jnp.where(used[i], row[i], 0))
                for i in range(chunk)
            ]
            if weights_refs:
                factor = [weights_refs[0][i] for i in index]
                values = [values[i] * row_access.fill(factor[i]) for i in range(chunk)]
            for i in range(chunk):
                bag, bag_end, total = write_bags_before(index[i], state)
                added = total + values[i]
                total = jnp.where(row_access.fill(used[i]), added, total)
                state = bag, bag_end, total
            return state

        state = first_bag, end_of(first_bag), zeros
        chunks = lax.div(end - first + (chunk - 1), jnp.int32(chunk))
        state = lax.fori_loop(0, chunks, add_chunk, state)
        write_bags_before(end, state)

    operands = [table, rows, offsets.reshape(-1)]
    operands += [] if weights is None else [weights]
    out_type = jax.ShapeDtypeStruct((senders * bags, width), dtype)
    with moves(
        ids * width * table.dtype.itemsize
        + sum(array.size * array.dtype.itemsize for array in operands[1:]),
        senders * bags * width * out_type.dtype.itemsize,
    ):
        programs = senders * programs_per_sender
        sums = run(sum_bags_kernel, out_type, operands, row_access, programs)
    return sums.reshape(senders, bags, width)
