"""Times the operations of ``embark_kernels`` on named shapes of published models."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from embark_kernels import (
    SHAPES,
    LookupConfig,
    LookupShape,
    RowwiseAdagrad,
    UpdateConfig,
    availability,
    init_states,
    lookup_key,
    pooled_lookup,
    tune,
    unique_by_owner,
    update_from_bags,
    update_key,
    update_rows,
)

ZIPF_EXPONENT = 1.05
OPTIMIZER = RowwiseAdagrad(0.01)
LOOKUP_CANDIDATES = [
    LookupConfig(bags, rows) for bags in (1, 4, 16, 64) for rows in (4, 8, 16, 32)
]
UPDATE_CANDIDATES = [
    UpdateConfig(blocks * rows, rows) for blocks in (1, 4, 16) for rows in (2, 4, 8, 16)
]


def measure_kernels(
    names: Sequence[str],
    table_bytes: int,
    entries: int,
    rounds: int,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[dict[str, Any]]:
    """Times lookup, update and unique in every implementation that runs here.

    Ids follow a Zipf law. Inputs lie on the device before the clock starts.

    Args:
      names: keys of ``embark_kernels.SHAPES``.
      table_bytes, entries: most bytes of a table, and most ids; shapes are cut to them.
      rounds: number of timed rounds, after a warm-up; results are medians.
      say: called with what is measured next.

    Yields:
      For each operation, shape and implementation: ``median_ms``, the shape as it was
      cut, and for a lookup ``bytes_per_s``, which counts rows and ids read and sums
      written.
    """
    usable = [name for name, reason in availability().items() if not reason]
    for name in names:
        shape = SHAPES[name].within(table_bytes, entries)
        about = {
            "shape": name,
            "rows": shape.rows,
            "width": shape.width,
            "batch": shape.batch,
            "ids": shape.ids,
            "device_kind": jax.devices()[0].device_kind,
        }
        ids = _ids(shape)
        for implementation in usable:
            say(f"{name}: unique, {implementation}")
            seconds = _median_s(_unique(shape, ids, implementation), rounds)
            yield {
                "op": "unique",
                "implementation": implementation,
                "median_ms": 1e3 * seconds,
                **about,
            }
            say(f"{name}: lookup, {implementation}")
            seconds = _median_s(_lookup(shape, ids, implementation), rounds)
            values = shape.ids * (shape.width + 1)
            values += shape.batch * len(shape.hotness) * shape.width
            yield {
                "op": "pooled_lookup",
                "implementation": implementation,
                "median_ms": 1e3 * seconds,
                "bytes_per_s": 4 * values / seconds,
                **about,
            }
            say(f"{name}: update, {implementation}")
            seconds = _median_s(_update(shape, ids, implementation), rounds)
            yield {
                "op": "update_from_bags",
                "implementation": implementation,
                "median_ms": 1e3 * seconds,
                **about,
            }


def tune_kernels(
    names: Sequence[str],
    table_bytes: int,
    entries: int,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[dict[str, Any]]:
    """Finds the best block sizes of the GPU kernels, and keeps them for later runs.

    Args:
      names, table_bytes, entries, say: as in ``measure_kernels``.

    Yields:
      For each key: the winner, and the milliseconds of every candidate.

    Raises:
      ValueError: if the kernels cannot run here.
    """
    if reason := availability()["mosaic_gpu"]:
        raise ValueError(f"mosaic_gpu {reason}: there is nothing to tune")
    for name in names:
        shape = SHAPES[name].within(table_bytes, entries)
        ids = _ids(shape)
        bags = shape.batch * len(shape.hotness)
        say(f"{name}: tuning lookup")
        key = lookup_key(shape.width, jnp.float32, shape.ids, bags)
        tuned = tune(
            key,
            LOOKUP_CANDIDATES,
            lambda config, s=shape, ids=ids: _lookup(s, ids, "mosaic_gpu", config),
        )
        yield _tuned(key, *tuned)
        say(f"{name}: tuning update")
        key = update_key(shape.width, jnp.float32, OPTIMIZER.state_widths(shape.width))
        tuned = tune(
            key,
            UPDATE_CANDIDATES,
            lambda config, s=shape: _update_rows(s, config),
        )
        yield _tuned(key, *tuned)


def _tuned(key: str, winner: Any, seconds: dict[Any, float]) -> dict[str, Any]:
    times = {str(config): 1e3 * time_s for config, time_s in seconds.items()}
    return {"op": "tune", "key": key, "winner": str(winner), "median_ms": times}


def _unique(
    shape: LookupShape, ids: jax.Array, implementation: str
) -> Callable[[], Any]:
    """Of all ids of the batch, all of one owner."""
    slot = ids.reshape(-1)

    @jax.jit
    def unique(slot):
        return unique_by_owner(
            jnp.zeros_like(slot),
            slot,
            1,
            shape.rows,
            slot.size,
            implementation=implementation,
        )

    return lambda: unique(slot)


def _lookup(
    shape: LookupShape,
    ids: jax.Array,
    implementation: str,
    config: LookupConfig | None = None,
) -> Callable[[], Any]:
    table = jnp.ones((shape.rows, shape.width), jnp.float32)

    @jax.jit
    def lookup(table, ids):
        return pooled_lookup(
            table,
            ids,
            hotness=shape.hotness,
            implementation=implementation,
            config=config,
        )

    return lambda: lookup(table, ids)


def _update(
    shape: LookupShape, ids: jax.Array, implementation: str
) -> Callable[[], Any]:
    state = [_table_and_states(shape)]
    gradient = jnp.ones((shape.batch, len(shape.hotness), shape.width), jnp.float32)

    def update(state, ids, gradient):
        table, states = state
        return update_from_bags(
            table,
            states,
            ids,
            gradient,
            OPTIMIZER,
            hotness=shape.hotness,
            implementation=implementation,
        )

    return _donating(jax.jit(update, donate_argnums=0), state, ids, gradient)


def _update_rows(shape: LookupShape, config: UpdateConfig) -> Callable[[], Any]:
    """Updates spread-out rows, a tenth as many as there are ids."""
    state = [_table_and_states(shape)]
    listed = min(shape.rows, max(1, shape.ids // 10))
    rows = jnp.arange(listed, dtype=jnp.int32) * (shape.rows // listed)
    gradient = jnp.ones((listed, shape.width), jnp.float32)

    def update(state, rows, gradient):
        table, states = state
        return update_rows(
            table,
            states,
            rows,
            gradient,
            OPTIMIZER,
            implementation="mosaic_gpu",
            config=config,
        )

    return _donating(jax.jit(update, donate_argnums=0), state, rows, gradient)


def _donating(update: Callable, state: list, *inputs: jax.Array) -> Callable[[], Any]:
    def call():
        state[0] = update(state[0], *inputs)
        return state[0][1]["accumulator"][:1]

    return call


def _table_and_states(shape: LookupShape):
    table = jnp.ones((shape.rows, shape.width), jnp.float32)
    return table, init_states(OPTIMIZER, table)


def _ids(shape: LookupShape) -> jax.Array:
    """``[batch, columns]`` ids that follow a power law; hot ids are spread out."""
    u = np.random.default_rng(0).random((shape.batch, sum(shape.hotness)))
    power = 1 - ZIPF_EXPONENT
    rank = (1 + u * (shape.rows**power - 1)) ** (1 / power) - 1
    ids = rank.astype(np.int64) * 2654435761 % shape.rows
    return jnp.asarray(ids.astype(np.int32))


def _median_s(call: Callable[[], Any], rounds: int) -> float:
    jax.block_until_ready(call())
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return statistics.median(times)
