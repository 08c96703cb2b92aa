"""The Mosaic GPU kernels of segments: consecutive sorted ids with equal keys.

**Numbering.** A block has ``IDS_PER_BLOCK`` ids; XLA has counted how many segments
begin before it. The block goes through its ids in tiles of ``TILE``, and counts by
comparing all with all: an id's segment is the number of first ids up to it, and behind
the first r segments of a tile come as many ids as have a number of at most r. Mosaic
stores no vector at computed places, so the first ids are collected in shared memory,
and written as one range.

**Sums and updates.** A program has ``IDS_PER_PROGRAM`` ids. It processes them in
chunks: it reads the keys of a chunk, the values to add up, and the rows, before it uses
the first of them, and finishes a segment after its last id. So this needs only the
sort: no list of rows, no offsets, no ranks. The program in which a segment begins
finishes it, even if the segment goes on in the next ones; another kernel sums the ids
of those before: one row for each program that begins inside a segment.

There are no atomics, and the order is always the same.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from embark_kernels._mosaic import (
    WARPGROUP,
    Rows,
    Tile,
    chunk_of,
    is_inside,
    launch_options,
    moves,
    rows_of_own,
    run,
    run_updating,
    sqrt,
    update_blocks,
)
from embark_kernels.optimizers import RowMath, RowOptimizer, States

IDS_PER_BLOCK, TILE = 1024, 64
IDS_PER_PROGRAM = 256
"""So few that a very hot row keeps many programs busy, not one."""

Load = Callable[[Sequence[Any], jax.Array], Any]
Finish = Callable[
    [Sequence[Any], jax.Array, jax.Array, jax.Array, Any, Sequence[Any]], None
]


def number_segments_mosaic_gpu(
    is_first: jax.Array, capacity: int
) -> tuple[jax.Array, jax.Array]:
    """Numbers segments as ``grouping.number_segments`` does, if there are ids, and a
    capacity."""
    n = is_first.shape[0]
    blocks = pl.cdiv(n, IDS_PER_BLOCK)
    flags = jnp.pad(is_first.astype(jnp.uint8), (0, blocks * IDS_PER_BLOCK - n))
    count = flags.reshape(blocks, IDS_PER_BLOCK).sum(axis=1, dtype=jnp.int32)
    before = jnp.cumsum(count, dtype=jnp.int32) - count
    tile = Tile(TILE)

    def number_segments_kernel(
        flags_ref, before_ref, number_ref, first_ref, tile_numbers, firsts
    ):
        block = lax.axis_index("block")
        begin, segments_before = block * IDS_PER_BLOCK, before_ref[block]

        def number_tile(index, segments):
            begin_tile = begin + index * TILE
            flag = tile.load_columns(flags_ref, begin_tile).astype(jnp.int32)
            up_to = tile.index(1) <= tile.index(0)
            number = tile.sum_rows(jnp.where(up_to, tile.spread(flag), 0))
            number_ref[pl.ds(begin_tile, TILE)] = (
                segments_before + segments + number - 1
            )
            tile_numbers[...] = number
            plgpu.commit_smem()
            numbers = tile.spread(tile.load_columns(tile_numbers, 0))
            offset = tile.sum_rows((numbers <= tile.index(0)).astype(jnp.int32))
            firsts[pl.ds(segments, TILE)] = begin_tile + offset
            plgpu.commit_smem()
            return segments + jnp.sum(flag)

        tiles = IDS_PER_BLOCK // TILE
        segments = lax.fori_loop(0, tiles, number_tile, jnp.int32(0))
        written = jnp.minimum(segments, capacity - segments_before)
        _write_range(first_ref, segments_before, firsts, written)

    kernel = plgpu.kernel(
        number_segments_kernel,
        out_type=[
            jax.ShapeDtypeStruct((blocks * IDS_PER_BLOCK,), jnp.int32),
            jax.ShapeDtypeStruct((capacity,), jnp.int32),
        ],
        scratch_types=[
            plgpu.SMEM((TILE,), jnp.int32),
            plgpu.SMEM((IDS_PER_BLOCK + TILE,), jnp.int32),
        ],
        grid=(blocks,),
        grid_names=("block",),
        **launch_options(),
    )
    with moves(flags.size + 4 * blocks, 4 * (flags.size + min(n, capacity))):
        number, first = kernel(flags, before)
    return number[:n], first


def _write_range(to_ref: Any, begin: jax.Array, values: Any, count: jax.Array) -> None:
    """Writes the first ``count`` values, if any, to ``begin`` and behind it: as
    vectors, of which the last overlaps, or, if they are fewer, one by one."""

    @pl.when(count >= WARPGROUP)
    def _():
        @pl.loop(0, lax.div(count + (WARPGROUP - 1), jnp.int32(WARPGROUP)))
        def _(number):
            index = jnp.minimum(number * WARPGROUP, count - WARPGROUP)
            to_ref[pl.ds(begin + index, WARPGROUP)] = values[pl.ds(index, WARPGROUP)]

    @pl.when(count < WARPGROUP)
    def _():
        @pl.loop(0, count)
        def _(index):
            to_ref[begin + index] = values[index]


def sum_segments(
    sums: jax.Array,
    values: jax.Array,
    key: jax.Array,
    source: jax.Array,
    weights: jax.Array | None,
) -> jax.Array:
    """Writes the sum of each segment to its row of ``sums``; see ``_finish_segments``
    for the arguments."""
    rows = Rows(sums.shape[1])

    def finish(updated_refs, row, _, total, *__):
        rows.store(updated_refs[0], row, total)

    return _finish_segments(values, key, source, weights, [sums], None, finish)[0]


def update_segments(
    table: jax.Array,
    states: States,
    values: jax.Array,
    key: jax.Array,
    source: jax.Array,
    weights: jax.Array | None,
    factors: tuple[jax.Array, ...],
    optimizer: RowOptimizer,
    noise: jax.Array | None,
) -> tuple[jax.Array, States]:
    """Updates rows from the sums of their segments; see ``_finish_segments`` for the
    arguments. ``factors`` are those of the step, ``noise`` is ``[n]`` that of the ids'
    rows, or None."""
    rows = Rows(table.shape[1])
    math = RowMath(sqrt, jnp.where, rows.fill)
    names = list(states)
    noises = rows.noises(noise)

    def load(updated_refs, row):
        return [rows.load_any(ref, row) for ref in updated_refs]

    def finish(updated_refs, row, index, total, loaded, read_refs):
        old, *old_states = loaded
        noise_refs, factor_refs = read_refs[: len(noises)], read_refs[len(noises) :]
        factor = tuple(factor_refs[0][i] for i in range(len(factors)))
        mean_square = None
        if optimizer.row_wise:
            mean_square = jnp.sum(total * total) * (1 / rows.width)
        old_states = dict(zip(names, old_states, strict=True))
        left, change, new = optimizer.update(
            old, old_states, total, mean_square, factor, math
        )
        new_row = rows.rounded(left - change, noise_refs, index)
        rows.store(updated_refs[0], row, new_row)
        for name, ref in zip(names, updated_refs[1:], strict=True):
            rows.store_any(ref, row, new[name])

    read = noises + ([jnp.stack(factors)] if factors else [])
    updated = [table, *states.values()]
    new_table, *new_states = _finish_segments(
        values, key, source, weights, updated, load, finish, read
    )
    return new_table, dict(zip(names, new_states, strict=True))


def _finish_segments(
    values: jax.Array,
    key: jax.Array,
    source: jax.Array,
    weights: jax.Array | None,
    updated: list[jax.Array],
    load: Load | None,
    finish: Finish,
    read: Sequence[jax.Array] = (),
) -> list[jax.Array]:
    """Sums ``values`` over segments, and passes each sum to ``finish``.

    Args:
      values: ``[m, width]`` float32 or bfloat16 values to sum.
      key: ``[n]`` int32 row of ``updated`` for each sorted id; equal keys are
        consecutive, and a key out of range means no row.
      source: ``[n]`` int32 row of ``values`` for each sorted id; out of range if it
        adds nothing.
      weights: ``[n]`` float32 factors of the sorted ids, or None.
      updated: arrays with the same number of rows, updated in place.
      load: ``(refs of updated, row)`` reads what ``finish`` needs of a row, or None.
      finish: ``(refs of updated, row, an id of it, sum, what load read, refs of read)``
        writes the row.
      read: arrays that ``finish`` reads.

    Returns:
      The new ``updated``.
    """
    width = values.shape[1]
    n = key.shape[0]
    num_rows = updated[0].shape[0]
    rows = Rows(width)
    _, rows_in_flight = update_blocks(width)
    chunk = min(n, rows_in_flight)
    programs = pl.cdiv(n, IDS_PER_PROGRAM)
    of_ids = [key, source, values] + ([] if weights is None else [weights])
    sums_before = _sum_begun_before(of_ids, num_rows, rows, chunk)

    def finish_segments_kernel(program, updated_refs, *refs):
        id_refs, (before_ref, *read_refs) = refs[: len(of_ids)], refs[len(of_ids) :]
        key_ref = id_refs[0]
        first, end, key_before = _range_of(program, key_ref, n)
        last = key_ref[end - 1]

        def add_chunk(state):
            start, total = state
            index, in_range = chunk_of(start, end, chunk, n)
            keys = [key_ref[i] for i in index]
            following = key_ref[jnp.minimum(index[-1] + 1, n - 1)]
            is_last = [a != b for a, b in itertools.pairwise([*keys, following])]
            is_last[-1] |= index[-1] == n - 1
            used = [
                inside & is_inside(key, num_rows) & (key != key_before)
                for inside, key in zip(in_range, keys, strict=True)
            ]
            ends = [a & b for a, b in zip(used, is_last, strict=True)]

            def add_ids(total):
                value, adds = _load_values(id_refs, rows, index, used)
                row = rows_of_own(keys, used)
                loaded = [load and load(updated_refs, r) for r in row]
                if load is not None:
                    rows.all_have_read()
                for i in range(chunk):
                    total = jnp.where(rows.fill(adds[i]), total + value[i], total)

                    @pl.when(ends[i])
                    def _(i=i, total=total):
                        finish(
                            updated_refs, row[i], index[i], total, loaded[i], read_refs
                        )

                    total = jnp.where(rows.fill(ends[i]), rows.zeros(), total)
                return total

            # Padding is for no row, and a segment that began before is finished there.
            any_used = reduce(operator.or_, used)
            return start + chunk, lax.cond(any_used, add_ids, lambda x: x, total)

        total = lax.while_loop(
            lambda state: state[0] < end, add_chunk, (first, rows.zeros())
        )[1]
        is_row = is_inside(last, num_rows)
        goes_on = (end < n) & (key_ref[jnp.minimum(end, n - 1)] == last)

        @pl.when(is_row & goes_on & (last != key_before))
        def _():
            begins = _begins_inside(key_ref, last, programs)
            total_of_all = _add_sums_after(
                program, begins, before_ref, rows, chunk, total
            )
            loaded = load and load(updated_refs, last)
            if load is not None:
                rows.all_have_read()
            finish(updated_refs, last, end - 1, total_of_all, loaded, read_refs)

    row_bytes = sum(array.shape[1] * array.dtype.itemsize for array in updated)
    written_bytes = min(n, num_rows) * row_bytes
    read_bytes = n * (width * values.dtype.itemsize + 4 * (len(of_ids) - 1))
    read_bytes += sum(array.size * array.dtype.itemsize for array in read)
    with moves(read_bytes + (0 if load is None else written_bytes), written_bytes):
        read = [*of_ids, sums_before, *read]
        return run_updating(finish_segments_kernel, updated, read, rows, programs)


def _begins_inside(key_ref: Any, key: jax.Array, programs: int) -> Callable:
    """Returns a function that says whether a program's first id is of this key."""

    def begins_inside(program: jax.Array) -> jax.Array:
        first = jnp.minimum(program, programs - 1) * IDS_PER_PROGRAM
        return (program < programs) & (key_ref[first] == key)

    return begins_inside


def _add_sums_after(
    program: jax.Array,
    begins_inside: Callable,
    before_ref: Any,
    rows: Rows,
    chunk: int,
    total: Any,
) -> Any:
    """Adds to the sum of a segment what the programs after this one have of it, in
    ``before_ref``; the next one begins inside of it."""

    def add_sums(state):
        begin, total = state
        following = [begin + i for i in range(chunk)]
        used = [begins_inside(p) for p in following]
        # Some of these have no sum.
        sums = [
            rows.load(before_ref, jnp.where(use, p, program + 1))
            for use, p in zip(used, following, strict=True)
        ]
        for i in range(chunk):
            total = jnp.where(rows.fill(used[i]), total + sums[i], total)
        return begin + chunk, total

    return lax.while_loop(
        lambda state: begins_inside(state[0]), add_sums, (program + 1, total)
    )[1]


def _sum_begun_before(
    of_ids: list[jax.Array], num_rows: int, rows: Rows, chunk: int
) -> jax.Array:
    """Sums each program's ids of the segment that began before them: ``[programs,
    width]`` float32, undefined if none did."""
    n = of_ids[0].shape[0]
    programs = pl.cdiv(n, IDS_PER_PROGRAM)

    def sum_begun_before_kernel(program, *refs):
        *id_refs, sums_ref = refs
        key_ref = id_refs[0]
        first, end, key_before = _range_of(program, key_ref, n)

        def goes_on(state):
            start, _ = state
            return (start < end) & (key_ref[jnp.minimum(start, n - 1)] == key_before)

        def add_chunk(state):
            start, total = state
            index, in_range = chunk_of(start, end, chunk, n)
            used = [
                inside & (key_ref[i] == key_before)
                for inside, i in zip(in_range, index, strict=True)
            ]
            value, adds = _load_values(id_refs, rows, index, used)
            for i in range(chunk):
                total = jnp.where(rows.fill(adds[i]), total + value[i], total)
            return start + chunk, total

        @pl.when(is_inside(key_before, num_rows) & (key_ref[first] == key_before))
        def _():
            total = lax.while_loop(goes_on, add_chunk, (first, rows.zeros()))[1]
            rows.store(sums_ref, program, total)

    out_type = jax.ShapeDtypeStruct((programs, rows.width), jnp.float32)
    # If no id occurs twice, this reads only two keys of each program.
    with moves(8 * programs, 0):
        return run(sum_begun_before_kernel, out_type, of_ids, rows, programs)


def _range_of(
    program: jax.Array, key_ref: Any, n: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the first id of a program, the end of its ids, and the key before them,
    or -1."""
    first = program * IDS_PER_PROGRAM
    key_before = jnp.where(first > 0, key_ref[jnp.maximum(first - 1, 0)], -1)
    return first, jnp.minimum(first + IDS_PER_PROGRAM, n), key_before


def _load_values(
    refs: Sequence[Any],
    rows: Rows,
    index: list[jax.Array],
    used: list[jax.Array],
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Reads the value of each id, times its weight, and whether it adds anything: it
    must be used and have a source; otherwise the value is undefined."""
    _, source_ref, values_ref, *weights_refs = refs
    source = [source_ref[i] for i in index]
    adds = [
        use & is_inside(row, values_ref.shape[0])
        for use, row in zip(used, source, strict=True)
    ]
    value = [
        rows.load(values_ref, jnp.where(add, row, 0))
        for add, row in zip(adds, source, strict=True)
    ]
    if weights_refs:
        factor = [weights_refs[0][i] for i in index]
        value = [a * rows.fill(b) for a, b in zip(value, factor, strict=True)]
    return value, adds
