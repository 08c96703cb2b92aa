"""The Mosaic GPU kernel of sums of rows.

A program sums a few consecutive bags, whose entries are consecutive, too. It reads
these entries in chunks: first the row numbers of a chunk, then all its rows, before it
adds up the first one. It writes a bag after its last entry. So the number of rows in
flight does not depend on the lengths of bags, and an empty bag is simply written.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from embark_kernels._mosaic import Rows, chunk_of, is_inside, moves, run
from embark_kernels.config import LookupConfig


def sum_stretches_mosaic_gpu(
    table: jax.Array,
    rows: jax.Array,
    offsets: jax.Array,
    weights: jax.Array | None,
    out_dtype: jax.typing.DTypeLike,
    config: LookupConfig,
) -> jax.Array:
    """See ``lookup.sum_stretches``; neither the table nor the entries may be empty."""
    (num_rows, width), entries = table.shape, rows.shape[0]
    lines, bags = offsets.shape[0], offsets.shape[1] - 1
    parts = pl.cdiv(bags, config.bags_per_block)  # per line
    chunk = min(config.rows_in_flight, entries)
    row_access = Rows(width)

    def sum_stretches_kernel(program, *refs):
        table_ref, rows_ref, offsets_ref, *weights_refs, out_ref = refs
        line = lax.div(program, jnp.int32(parts))
        first_bag = lax.rem(program, jnp.int32(parts)) * config.bags_per_block
        end_bag = jnp.minimum(first_bag + config.bags_per_block, bags)

        def offset(bag):
            return offsets_ref[line * (bags + 1) + bag]

        first, end = offset(first_bag), offset(end_bag)
        zeros = row_access.zeros()

        def write_bags_before(entry, state):
            """Writes all bags that end at ``entry`` or before."""

            def write(state):
                bag, _, total = state
                row_access.store(out_ref, line * bags + bag, total)
                # The bag after the last one is never used, but its end is read.
                return bag + 1, offset(jnp.minimum(bag + 2, bags)), zeros

            return lax.while_loop(
                lambda state: (state[1] <= entry) & (state[0] < end_bag), write, state
            )

        def add_chunk(index, state):
            start = first + index * chunk
            entry, mine = chunk_of(start, end, chunk, entries)
            row = [rows_ref[each] for each in entry]
            used = [mine[i] & is_inside(row[i], num_rows) for i in range(chunk)]
            values = [
                row_access.load(table_ref, jnp.where(used[i], row[i], 0))
                for i in range(chunk)
            ]
            if weights_refs:
                factor = [weights_refs[0][each] for each in entry]
                values = [
                    value * row_access.fill(each)
                    for value, each in zip(values, factor, strict=True)
                ]
            for i in range(chunk):
                bag, bag_end, total = write_bags_before(entry[i], state)
                added = total + values[i]
                total = jnp.where(row_access.fill(used[i]), added, total)
                state = bag, bag_end, total
            return state

        state = (first_bag, offset(first_bag + 1), zeros)
        chunks = lax.div(end - first + (chunk - 1), jnp.int32(chunk))
        state = lax.fori_loop(0, chunks, add_chunk, state)
        write_bags_before(end, state)

    operands = [table, rows, offsets.reshape(-1)]
    operands += [] if weights is None else [weights]
    out_type = jax.ShapeDtypeStruct((lines * bags, width), out_dtype)
    with moves(
        entries * width * table.dtype.itemsize
        + sum(each.size * each.dtype.itemsize for each in operands[1:]),
        lines * bags * width * jnp.dtype(out_dtype).itemsize,
    ):
        sums = run(sum_stretches_kernel, out_type, operands, row_access, lines * parts)
    return sums.reshape(lines, bags, width)
