"""What the battery times: each case is a function and how to make its input.

Inputs are made on the device by jitted functions, so that a case can be compiled from
shapes alone. Byte counts are the fewest that any implementation must move.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import embark_kernels as ek
import jax
import jax.numpy as jnp
import numpy as np

from embark_jax.config.reading import load_table_list

ZIPF_EXPONENT = 1.1
TABLE_BYTES = 20 * 2**30  # far beyond any cache
ENTRIES = 2**22  # ids of a batch
GLOBAL_BATCH = 65_536
MODELS = {"dlrm_dcnv2": 8, "t180": 128, "t200": 128, "t510": 128, "t7": 128}
"""Published models of ``configs/models``, and the devices that share the batch."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One function to time.

    Attributes:
      fields: what it is, for its row of the result.
      make_state: key to what persists between calls, such as the table.
      make_inputs: key to what is new in each call, such as ids.
      function: ``(state, inputs)`` to the output; to the new state if ``in_place``.
      in_place: the state is donated.
      bytes: that must be moved through the GPU's memory.
      flops: that must be computed.
    """

    fields: dict[str, Any]
    make_state: Callable
    make_inputs: Callable
    function: Callable
    in_place: bool = False
    bytes: int = 0
    flops: int = 0


def make_ids(key, shape, rows: int, distribution: str) -> jax.Array:
    """int32 ids, uniform or by a power law cut at ``rows`` whose hot ids lie apart."""
    if distribution == "uniform":
        return jax.random.randint(key, shape, 0, rows, jnp.int32)
    power = 1 - ZIPF_EXPONENT
    u = jax.random.uniform(key, shape)
    rank = (1 + u * (rows**power - 1)) ** (1 / power) - 1
    spread = rank.astype(jnp.uint32) * jnp.uint32(2654435761)  # Knuth's hash
    return (spread % jnp.uint32(rows)).astype(jnp.int32)


def make_table(rows: int, width: int, dtype) -> jax.Array:
    """Different numbers in [-0.5, 0.5), without a random generator's temporaries."""
    row = jax.lax.broadcasted_iota(jnp.uint32, (rows, width), 0) * jnp.uint32(40503)
    column = jax.lax.broadcasted_iota(jnp.uint32, (rows, width), 1) * jnp.uint32(977)
    return (((row + column) % jnp.uint32(1009)) / 1009 - 0.5).astype(dtype)


def copy() -> Case:
    """Reads and writes 4 GiB: the bandwidth that all else is held against."""
    n = 2**30
    return Case(
        {"op": "copy", "shape": [n], "dtype": "float32"},
        lambda key: (),
        lambda key: jax.random.uniform(key, (n,)),
        lambda state, x: x + 1,
        bytes=2 * 4 * n,
    )


def lookup(
    implementation: str,
    width: int,
    hotness: int,
    distribution: str,
    dtype: str = "float32",
    table_bytes: int = TABLE_BYTES,
    entries: int = ENTRIES,
) -> Case:
    """One bag a line; bytes are the rows, the float32 sums, the ids."""
    itemsize = jnp.dtype(dtype).itemsize
    rows, batch = table_bytes // (width * itemsize), max(1, entries // hotness)
    row_bytes = width * itemsize

    def function(table, ids):
        return ek.pooled_lookup(table, ids, implementation=implementation)

    return Case(
        {
            "op": "pooled_lookup",
            "implementation": implementation,
            "rows": rows,
            "width": width,
            "dtype": dtype,
            "batch": batch,
            "hotness": hotness,
            "ids": distribution,
        },
        lambda key: make_table(rows, width, dtype),
        lambda key: make_ids(key, (batch, hotness), rows, distribution),
        function,
        bytes=batch * (hotness * (row_bytes + 4) + 4 * width),
    )


def widths(model: str) -> list[int]:
    """Of the tables of a published model."""
    return sorted({table.dim for table in load_table_list(model).specs()[0]})


def model_lookup(implementation: str, model: str, width: int, devices: int) -> Case:
    """Of all tables of one width of a published model as one table, on one device's
    batch; cut to the sizes of the other cases."""
    tables, features = load_table_list(model).specs()
    rows_of = {table.name: table.rows for table in tables if table.dim == width}
    hotness = tuple(f.hotness for f in features if f.table in rows_of)
    rows = min(sum(rows_of.values()), TABLE_BYTES // (4 * width))
    ids = sum(hotness)
    batch = min(GLOBAL_BATCH // devices, max(1, 4 * ENTRIES // ids))

    def function(table, ids):
        return ek.pooled_lookup(
            table, ids, hotness=hotness, implementation=implementation
        )

    return Case(
        {
            "op": "pooled_lookup",
            "implementation": implementation,
            "shape": f"{model} {width}",
            "rows": rows,
            "batch": batch,
        },
        lambda key: make_table(rows, width, "float32"),
        lambda key: make_ids(key, (batch, ids), rows, "uniform"),
        function,
        bytes=4 * batch * (ids * (width + 1) + len(hotness) * width),
    )


def update_rows(
    implementation: str,
    optimizer: Any,
    width: int = 128,
    dtype: str = "float32",
    table_bytes: int = TABLE_BYTES,
    listed: int = ENTRIES // 4,
) -> Case:
    """Rows far apart, ascending; bytes are rows and states twice, gradients once."""
    itemsize = jnp.dtype(dtype).itemsize
    rows = table_bytes // (width * itemsize)
    state_width = sum(optimizer.state_widths(width).values())

    def make_inputs(key):
        stride = rows // listed
        first = jax.random.randint(key, (listed,), 0, stride, jnp.int32)
        place = jnp.arange(listed, dtype=jnp.int32) * stride + first
        return place, jax.random.normal(key, (listed, width))

    def function(state, inputs):
        return ek.update_rows(*state, *inputs, optimizer, implementation=implementation)

    return Case(
        {
            "op": "update_rows",
            "implementation": implementation,
            "optimizer": type(optimizer).__name__,
            "rows": rows,
            "width": width,
            "dtype": dtype,
            "listed": listed,
        },
        lambda key: _table_and_states(rows, width, dtype, optimizer),
        make_inputs,
        function,
        in_place=True,
        bytes=listed * (2 * (width * itemsize + 4 * state_width) + 4 * width + 4),
    )


def sum_groups(
    implementation: str,
    distribution: str,
    entries: int = ENTRIES,
) -> Case:
    """Gradients of equal rows; "one row" is the worst: all entries of one row."""
    rows, width, values = 10_000_000, 128, max(1, entries // 10)

    def make_inputs(key):
        if distribution == "one row":
            ids = jnp.full(entries, 7, jnp.int32)
        else:
            ids = make_ids(key, (entries,), rows, distribution)
        source = jax.random.randint(key, (entries,), 0, values, jnp.int32)
        gradient = jax.random.normal(key, (values, width))
        groups = ek.group_rows(ids, rows, implementation=implementation)
        return gradient, groups, source

    def function(state, inputs):
        return ek.sum_groups(*inputs, implementation=implementation)

    return Case(
        {
            "op": "sum_groups",
            "implementation": implementation,
            "width": width,
            "entries": entries,
            "ids": distribution,
        },
        lambda key: (),
        make_inputs,
        function,
        bytes=entries * (4 * width + 8),
    )


def sum_and_update(
    implementation: str,
    optimizer: Any,
    distribution: str,
    width: int = 128,
    table_bytes: int = TABLE_BYTES,
    entries: int = ENTRIES,
) -> Case:
    """What a train step does with the gradients of bags of 10 ids, once they are
    sorted; bytes, of uniform ids alone, are those of a gradient an id, and of rows and
    states twice."""
    rows, values = table_bytes // (4 * width), entries // 10

    def make_inputs(key):
        ids = make_ids(key, (entries,), rows, distribution)
        source = jax.random.randint(key, (entries,), 0, values, jnp.int32)
        gradient = jax.random.normal(key, (values, width))
        return ek.group_rows(ids, rows, implementation=implementation), gradient, source

    def function(state, inputs):
        return ek.sum_and_update(
            *state, *inputs, optimizer, implementation=implementation
        )

    touched = round(rows * -math.expm1(entries * math.log1p(-1 / rows)))
    row_bytes = 4 * (width + sum(optimizer.state_widths(width).values()))
    moved = entries * (4 * width + 8) + 2 * touched * row_bytes
    return Case(
        {
            "op": "sum_and_update",
            "implementation": implementation,
            "optimizer": type(optimizer).__name__,
            "rows": rows,
            "width": width,
            "entries": entries,
            "ids": distribution,
        },
        lambda key: _table_and_states(rows, width, "float32", optimizer),
        make_inputs,
        function,
        in_place=True,
        bytes=moved if distribution == "uniform" else 0,
    )


def unique(implementation: str, distribution: str, n: int = ENTRIES) -> Case:
    """``unique_by_owner`` of one owner, and ``jnp.unique`` with the same outputs."""
    rows = 40_000_000

    def function(state, ids):
        if implementation != "jnp.unique":
            owner = jnp.zeros_like(ids)
            return ek.unique_by_owner(
                owner, ids, 1, rows, n, implementation=implementation
            )
        return jnp.unique(
            ids, return_index=True, return_inverse=True, size=n, fill_value=rows
        )

    return Case(
        {
            "op": "unique",
            "implementation": implementation,
            "entries": n,
            "ids": distribution,
        },
        lambda key: (),
        lambda key: make_ids(key, (n,), rows, distribution),
        function,
    )


def attention(
    implementation: str,
    weights: str,
    dim: int,
    backward: bool,
    heads: int = 4,
    samples: int = 16,
    longest: int = 4086,
) -> Case:
    """DLRMv4's packed histories: a quarter is as long as may be, the others are of all
    lengths up to seven tenths of it.

    FLOPs are those of two products forward and five backward, of the pairs of an event
    and an earlier one of its sample or itself.
    """
    share = (np.arange(samples) + 0.5) / samples
    length = np.where(share > 0.75, 1, share / 0.75 * 0.7) * longest
    length = np.random.default_rng(0).permutation(length.astype(np.int32))
    first = np.cumsum(length, dtype=np.int32) - length
    events = -(-int(length.sum()) // 128) * 128
    pairs = int((length.astype(np.int64) * (length + 1) // 2).sum())
    shape = events, heads, dim

    def attend(query, key, value):
        places = jnp.asarray(first), jnp.asarray(length)
        given = query, key, value, *places, longest, weights
        return ek.attend_packed(*given, implementation=implementation)

    def function(state, arrays):
        if not backward:
            return attend(*arrays[:3])
        sums, pull = jax.vjp(attend, *arrays[:3])
        return sums, pull(arrays[3])

    def make_inputs(key):
        keys = jax.random.split(key, 4)
        return [jax.random.normal(each, shape, jnp.bfloat16) for each in keys]

    return Case(
        {
            "op": "attention",
            "implementation": implementation,
            "about": f"{weights}, {'forward and backward' if backward else 'forward'}",
            "events": int(length.sum()),
            "heads": heads,
            "width": dim,
            "dtype": "bfloat16",
        },
        lambda key: (),
        make_inputs,
        function,
        flops=2 * (7 if backward else 2) * pairs * heads * dim,
    )


def group_rows(implementation: str, distribution: str, n: int = ENTRIES // 4) -> Case:
    """All integer work of an update: a sort for the kernel, marks for plain XLA."""
    rows = TABLE_BYTES // (128 * 4)
    return Case(
        {
            "op": "group_rows",
            "implementation": implementation,
            "entries": n,
            "ids": distribution,
        },
        lambda key: (),
        lambda key: make_ids(key, (n,), rows, distribution),
        lambda state, ids: ek.group_rows(ids, rows, implementation=implementation),
    )


def _table_and_states(rows, width, dtype, optimizer):
    table = make_table(rows, width, dtype)
    return table, ek.init_states(optimizer, table)
