"""The Mosaic GPU kernel of sums over runs. A run is consecutive sorted entries with
equal keys.

A program has ``PART`` of the sorted entries. It processes them in chunks: it reads the
keys of a chunk, the values to add up, and the rows, before it uses the first of them,
and finishes a run after its last entry. So the kernel needs only the sort: no list of
rows, no offsets, no ranks.

The program in which a run begins finishes it, even if the run goes on in the next ones.
Another kernel sums its entries of those before: one row for each program that begins
inside a run. There are no atomics, and the order is always the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from embark_kernels._mosaic import (
    Rows,
    chunk_of,
    is_inside,
    moves,
    run,
    run_in_place,
    sqrt,
)
from embark_kernels.config import UpdateConfig
from embark_kernels.optimizers import RowMath, RowOptimizer, States

PART = 256
"""Entries per program, so that a very hot row keeps many programs busy, not one."""

Load = Callable[[Sequence[Any], jax.Array], Any]
Finish = Callable[
    [Sequence[Any], jax.Array, jax.Array, jax.Array, Any, Sequence[Any]], None
]


def sum_runs(
    sums: jax.Array,
    values: jax.Array,
    key: jax.Array,
    source: jax.Array,
    weights: jax.Array | None,
) -> jax.Array:
    """Writes the sum of each run to its row of ``sums``; see ``_finish_runs`` for the
    arguments."""
    rows = Rows(sums.shape[1])

    def finish(updated_refs, row, _, total, *__):
        rows.store(updated_refs[0], row, total)

    return _finish_runs(values, key, source, weights, [sums], None, finish)[0]


def update_runs(
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
    """Updates rows from the sums of their runs; see ``_finish_runs`` for the arguments.
    ``factors`` are those of the step, ``noise`` is ``[n]`` that of the entries' rows,
    or None."""
    rows = Rows(table.shape[1])
    math = RowMath(sqrt, jnp.where, rows.fill)
    names = list(states)
    noises = rows.noises(noise)

    def load(updated_refs, row):
        return [rows.load_any(ref, row) for ref in updated_refs]

    def finish(updated_refs, row, entry, total, loaded, read_refs):
        old, *old_states = loaded
        noise_refs, factor_refs = read_refs[: len(noises)], read_refs[len(noises) :]
        factor = tuple(factor_refs[0][i] for i in range(len(factors)))
        gradient = optimizer.full_gradient(old, total)
        mean_square = None
        if optimizer.row_wise:
            mean_square = jnp.sum(gradient * gradient) / rows.width
        old_states = dict(zip(names, old_states, strict=True))
        left, change, new = optimizer.update(
            old, old_states, gradient, mean_square, factor, math
        )
        new_row = rows.rounded(left - change, noise_refs, entry)
        rows.store(updated_refs[0], row, new_row)
        for name, ref in zip(names, updated_refs[1:], strict=True):
            rows.store_any(ref, row, new[name])

    read = noises + ([jnp.stack(factors)] if factors else [])
    updated = [table, *states.values()]
    updated = _finish_runs(values, key, source, weights, updated, load, finish, read)
    return updated[0], dict(zip(names, updated[1:], strict=True))


def _finish_runs(
    values: jax.Array,
    key: jax.Array,
    source: jax.Array,
    weights: jax.Array | None,
    updated: list[jax.Array],
    load: Load | None,
    finish: Finish,
    read: Sequence[jax.Array] = (),
) -> list[jax.Array]:
    """Sums ``values`` over runs, and passes each sum to ``finish``.

    Args:
      values: ``[m, width]`` float32 or bfloat16 values to sum.
      key: ``[n]`` int32 row of ``updated`` for each sorted entry; equal keys are
        consecutive, and a key out of range means no row.
      source: ``[n]`` int32 row of ``values`` for each sorted entry; out of range if it
        adds nothing.
      weights: ``[n]`` float32 factors of the sorted entries, or None.
      updated: arrays with the same number of rows, updated in place.
      load: ``(refs of updated, row)`` reads what ``finish`` needs of a row, or None.
      finish: ``(refs of updated, row, an entry of it, sum, what load read, refs of
        read)`` writes the row.
      read: arrays that ``finish`` reads.

    Returns:
      The new ``updated``.
    """
    (_, width), n, num_rows = values.shape, key.shape[0], updated[0].shape[0]
    rows = Rows(width)
    chunk = min(n, UpdateConfig.heuristic(width).rows_in_flight)
    programs = pl.cdiv(n, PART)
    entries = [key, source, values] + ([] if weights is None else [weights])
    parts = _sum_begun_before(entries, num_rows, rows, chunk)

    def finish_kernel(program, updated_refs, *refs):
        entry_refs, (parts_ref, *read_refs) = refs[: len(entries)], refs[len(entries) :]
        key_ref = entry_refs[0]
        first, end, before = _part(program, key_ref, n)
        last = key_ref[end - 1]

        def add_chunk(state):
            start, total = state
            entry, mine = chunk_of(start, end, chunk, n)
            keys = [key_ref[each] for each in entry]
            following = key_ref[jnp.minimum(entry[-1] + 1, n - 1)]
            is_last = [a != b for a, b in itertools.pairwise([*keys, following])]
            is_last[-1] |= entry[-1] == n - 1
            for i, each in enumerate(keys):
                mine[i] &= is_inside(each, num_rows) & (each != before)
            ends = [a & b for a, b in zip(mine, is_last, strict=True)]
            value, adds = _load_values(entry_refs, rows, entry, mine)
            row = [jnp.where(ends[i], keys[i], 0) for i in range(chunk)]
            loaded = [load and load(updated_refs, each) for each in row]
            if load is not None:
                rows.all_have_read()
            for i in range(chunk):
                total = jnp.where(rows.fill(adds[i]), total + value[i], total)

                @pl.when(ends[i])
                def _(i=i, total=total):
                    state = total, loaded[i], read_refs
                    finish(updated_refs, row[i], entry[i], *state)

                total = jnp.where(rows.fill(ends[i]), rows.zeros(), total)
            return start + chunk, total

        total = lax.while_loop(
            lambda state: state[0] < end, add_chunk, (first, rows.zeros())
        )[1]
        is_row = is_inside(last, num_rows)
        goes_on = (end < n) & (key_ref[jnp.minimum(end, n - 1)] == last)

        @pl.when(is_row & goes_on & (last != before))
        def _():
            def begins_inside(program):
                place = jnp.minimum(program, programs - 1)
                return (program < programs) & (key_ref[place * PART] == last)

            def add_parts(state):
                following, total = state
                each = [following + i for i in range(chunk)]
                used = [begins_inside(b) for b in each]
                value = [
                    rows.load(parts_ref, jnp.where(use, b, 0))
                    for use, b in zip(used, each, strict=True)
                ]
                for use, part in zip(used, value, strict=True):
                    total = jnp.where(rows.fill(use), total + part, total)
                return following + chunk, total

            state = lax.while_loop(
                lambda state: begins_inside(state[0]), add_parts, (program + 1, total)
            )
            loaded = load and load(updated_refs, last)
            if load is not None:
                rows.all_have_read()
            finish(updated_refs, last, end - 1, state[1], loaded, read_refs)

    row_bytes = sum(each.shape[1] * each.dtype.itemsize for each in updated)
    written_bytes = min(n, num_rows) * row_bytes
    read_bytes = n * (width * values.dtype.itemsize + 4 * (len(entries) - 1))
    read_bytes += sum(each.size * each.dtype.itemsize for each in read)
    with moves(read_bytes + (0 if load is None else written_bytes), written_bytes):
        read = [*entries, parts, *read]
        return run_in_place(finish_kernel, updated, read, rows, programs)


def _sum_begun_before(
    entries: list[jax.Array], num_rows: int, rows: Rows, chunk: int
) -> jax.Array:
    """``[programs, width]`` float32 sums of each program's entries of the run that
    began before them; undefined if none did."""
    n = entries[0].shape[0]
    programs = pl.cdiv(n, PART)

    def part_kernel(program, *refs):
        key_ref = refs[0]
        first, end, before = _part(program, key_ref, n)

        def more(state):
            start, _ = state
            return (start < end) & (key_ref[jnp.minimum(start, n - 1)] == before)

        def add_chunk(state):
            start, total = state
            entry, inside = chunk_of(start, end, chunk, n)
            mine = [
                use & (key_ref[each] == before)
                for use, each in zip(inside, entry, strict=True)
            ]
            value, adds = _load_values(refs[: len(entries)], rows, entry, mine)
            for use, each in zip(adds, value, strict=True):
                total = jnp.where(rows.fill(use), total + each, total)
            return start + chunk, total

        @pl.when(is_inside(before, num_rows) & (key_ref[first] == before))
        def _():
            total = lax.while_loop(more, add_chunk, (first, rows.zeros()))[1]
            rows.store(refs[-1], program, total)

    out_type = jax.ShapeDtypeStruct((programs, rows.width), jnp.float32)
    # If no id occurs twice, this reads only two keys of each program.
    with moves(8 * programs, 0):
        return run(part_kernel, out_type, entries, rows, programs)


def _part(
    program: jax.Array, key_ref: Any, n: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The first entry of this program, its end, and the key before it, or -1."""
    first = program * PART
    before = jnp.where(first > 0, key_ref[jnp.maximum(first - 1, 0)], -1)
    return first, jnp.minimum(first + PART, n), before


def _load_values(
    refs: Sequence[Any],
    rows: Rows,
    entry: list[jax.Array],
    used: list[jax.Array],
) -> tuple[list[jax.Array], list[jax.Array]]:
    """The value of each entry times its weight, and whether it adds anything: it must
    be used and have a source; otherwise the value is undefined."""
    _, source_ref, values_ref, *weights_refs = refs
    source = [source_ref[each] for each in entry]
    adds = [
        use & is_inside(each, values_ref.shape[0])
        for use, each in zip(used, source, strict=True)
    ]
    value = [
        rows.load(values_ref, jnp.where(add, each, 0))
        for add, each in zip(adds, source, strict=True)
    ]
    if weights_refs:
        factor = [weights_refs[0][each] for each in entry]
        value = [a * rows.fill(b) for a, b in zip(value, factor, strict=True)]
    return value, adds
