"""Times the operations of ``embark_kernels`` on named shapes of published models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from embark_kernels import (
    SHAPES,
    LookupShape,
    RowwiseAdagrad,
    availability,
    group_rows,
    init_states,
    pooled_lookup,
    sum_and_update,
    unique_by_owner,
)

from embark_jax.bench.timing import median_s

ZIPF_EXPONENT = 1.05
OPTIMIZER = RowwiseAdagrad(0.01)


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
        ids = _ids(shape)
        for implementation in usable:
            for op, operation in OPERATIONS.items():
                say(f"{name}: {op}, {implementation}")
                seconds = median_s(operation(shape, ids, implementation), rounds)
                result = {
                    "op": op,
                    "implementation": implementation,
                    "median_ms": 1e3 * seconds,
                    "shape": name,
                    "rows": shape.rows,
                    "width": shape.width,
                    "batch": shape.batch,
                    "ids": shape.ids,
                    "device_kind": jax.devices()[0].device_kind,
                }
                if op == "pooled_lookup":
                    values = shape.ids * (shape.width + 1)
                    values += shape.batch * len(shape.hotness) * shape.width
                    result["bytes_per_s"] = 4 * values / seconds
                yield result


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
    shape: LookupShape, ids: jax.Array, implementation: str
) -> Callable[[], Any]:
    table = jnp.ones((shape.rows, shape.width), jnp.float32)

    @jax.jit
    def lookup(table, ids):
        return pooled_lookup(
            table, ids, hotness=shape.hotness, implementation=implementation
        )

    return lambda: lookup(table, ids)


def _update(
    shape: LookupShape, ids: jax.Array, implementation: str
) -> Callable[[], Any]:
    """Of the rows of a batch, from the gradients of its bags."""
    table = jnp.ones((shape.rows, shape.width), jnp.float32)
    state = table, init_states(OPTIMIZER, table)
    bags = len(shape.hotness)
    gradient = jnp.ones((shape.batch * bags, shape.width), jnp.float32)
    column_bag = np.repeat(np.arange(bags, dtype=np.int32), shape.hotness)

    def update(state, ids, gradient):
        first_bag = jnp.arange(shape.batch, dtype=jnp.int32)[:, None] * bags
        bag = (first_bag + column_bag[None]).reshape(-1)
        rows, states = state
        groups = group_rows(ids.reshape(-1), shape.rows, implementation=implementation)
        return sum_and_update(
            rows,
            states,
            groups,
            gradient,
            bag,
            OPTIMIZER,
            implementation=implementation,
        )

    donating = jax.jit(update, donate_argnums=0)

    def call():
        nonlocal state
        state = donating(state, ids, gradient)
        return state[1]["accumulator"][:1]

    return call


def _ids(shape: LookupShape) -> jax.Array:
    """``[batch, columns]`` ids that follow a power law; hot ids are spread out."""
    u = np.random.default_rng(0).random((shape.batch, sum(shape.hotness)))
    power = 1 - ZIPF_EXPONENT
    rank = (1 + u * (shape.rows**power - 1)) ** (1 / power) - 1
    ids = rank.astype(np.int64) * 2654435761 % shape.rows
    return jnp.asarray(ids.astype(np.int32))


OPERATIONS = {"unique": _unique, "pooled_lookup": _lookup, "update": _update}
