"""The Mosaic GPU kernel that numbers runs. A run is consecutive sorted entries with
equal keys; marks say which entries are the first of one.

A block has ``PART`` entries; XLA has counted how many runs begin before it. The block
goes through them in tiles of ``TILE`` entries, and counts by comparing all with all:
an entry's number is the number of marks up to it, and behind the first r runs of a tile
come as many entries as have a number of at most r. Mosaic stores no vector at computed
places, so the first entries are collected in shared memory, and written as one range.
There are no atomics, and the order of blocks does not matter.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from embark_kernels._mosaic import WARPGROUP, Tile, launch_options, moves

PART = 1024
"""Entries per block."""
TILE = 64


def number_runs_mosaic_gpu(
    is_first: jax.Array, capacity: int
) -> tuple[jax.Array, jax.Array]:
    """See ``runs.number_runs``; there are entries, and a capacity."""
    n = is_first.shape[0]
    blocks = pl.cdiv(n, PART)
    marks = jnp.pad(is_first.astype(jnp.uint8), (0, blocks * PART - n))
    count = marks.reshape(blocks, PART).sum(axis=1, dtype=jnp.int32)
    before = jnp.cumsum(count, dtype=jnp.int32) - count
    tile = Tile(TILE)

    def number_runs_kernel(marks_ref, before_ref, run_ref, first_ref, numbers, found):
        block = lax.axis_index("block")
        begin, first_run = block * PART, before_ref[block]

        def number_tile(index, runs):
            entry = begin + index * TILE
            mark = tile.load_columns(marks_ref, entry).astype(jnp.int32)
            up_to = tile.index(1) <= tile.index(0)
            number = tile.sum_rows(jnp.where(up_to, tile.spread(mark), 0))
            run_ref[pl.ds(entry, TILE)] = first_run + runs + number - 1
            numbers[...] = number
            plgpu.commit_smem()
            earlier = tile.spread(tile.load_columns(numbers, 0)) <= tile.index(0)
            place = tile.sum_rows(earlier.astype(jnp.int32))
            found[pl.ds(runs, TILE)] = entry + place
            plgpu.commit_smem()
            return runs + jnp.sum(mark)

        runs = lax.fori_loop(0, PART // TILE, number_tile, jnp.int32(0))
        _write_range(
            first_ref, first_run, found, jnp.minimum(runs, capacity - first_run)
        )

    kernel = plgpu.kernel(
        number_runs_kernel,
        out_type=[
            jax.ShapeDtypeStruct((blocks * PART,), jnp.int32),
            jax.ShapeDtypeStruct((capacity,), jnp.int32),
        ],
        scratch_types=[
            plgpu.SMEM((TILE,), jnp.int32),
            plgpu.SMEM((PART + TILE,), jnp.int32),
        ],
        grid=(blocks,),
        grid_names=("block",),
        **launch_options(),
    )
    with moves(marks.size + 4 * blocks, 4 * (marks.size + min(n, capacity))):
        run, first = kernel(marks, before)
    return run[:n], first


def _write_range(to_ref: Any, begin: jax.Array, values: Any, count: jax.Array) -> None:
    """Writes the first ``count`` values, if any, to ``begin`` and behind it: as
    vectors, of which the last overlaps, or, if they are fewer, one by one."""

    @pl.when(count >= WARPGROUP)
    def _():
        @pl.loop(0, lax.div(count + (WARPGROUP - 1), jnp.int32(WARPGROUP)))
        def _(index):
            place = jnp.minimum(index * WARPGROUP, count - WARPGROUP)
            to_ref[pl.ds(begin + place, WARPGROUP)] = values[pl.ds(place, WARPGROUP)]

    @pl.when(count < WARPGROUP)
    def _():
        @pl.loop(0, count)
        def _(place):
            to_ref[begin + place] = values[place]
