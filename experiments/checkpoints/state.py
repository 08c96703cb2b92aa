"""The state of a model that is all table, for a plan of some devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from embark_kernels import RowwiseAdagrad
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.logical import RangeLayout, table_layouts
from embark_jax.plans.plan import Plan
from embark_jax.plans.storage import Placement, lay_out
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.train.state import TrainState

DIM = 64
TABLES = 4
ROWS = 4096
"""Of each place of a table that is looked at."""
MASK = 2**24 - 1
"""Integers up to here are float32s."""


def make_plan(gigabytes: float, devices: int, way: str) -> Plan:
    """Four tables of one size on a mesh of one node.

    Args:
      gigabytes: of the tables together.
      devices: of the mesh.
      way: "rows" splits each in UB by rows over all devices, "columns" in UB by two
        columns and half as many rows, "pooled" in RB by rows, from the last device on.
    """
    rows = int(gigabytes * 1e9 / (4 * DIM * TABLES)) // 64 * 64
    tables = [TableSpec(f"t{i}", rows, DIM) for i in range(TABLES)]
    features = tuple(FeatureSpec(f"f{i}", f"t{i}") for i in range(TABLES))
    owners = tuple(range(devices))
    placed = []
    for table in tables:
        if way == "rows":
            placed.append(Placement(table, "ub", devices, 1, owners))
        elif way == "pooled":
            placed.append(Placement(table, "rb", devices, 1, owners[::-1]))
        else:
            shards = max(1, devices // 2)
            over = tuple(i % devices for i in range(2 * shards))
            placed.append(Placement(table, "ub", shards, 2, over))
    storages = lay_out(tuple(placed), features, devices)
    capacities = {storage.name: 64 for storage in storages}
    return Plan(features, tuple(placed), 1, devices, 8 * devices, capacities)


def make_state(plan: Plan, filled: bool) -> tuple[TrainState, EmbeddingCollection]:
    """A state of zeros, or of values that tell their row and column in the array."""
    embeddings = EmbeddingCollection(plan, plan.make_mesh())
    scalar = jax.jit(
        lambda: jnp.zeros((), jnp.int32),
        out_shardings=NamedSharding(embeddings.mesh, PartitionSpec()),
    )()
    storages = {}
    for storage in plan.storages:
        shape = storage.slots_per_device * plan.devices, storage.width
        sharding = embeddings.shardings[storage.name]
        fill = _fill if filled else jnp.zeros
        make = jax.jit(fill, static_argnums=0, out_shardings=sharding)
        storages[storage.name] = make(shape)
    state = TrainState(
        step=scalar,
        halted=scalar,
        params={},
        dense_state={},
        model_state={},
        storages=storages,
        embedding_state=embeddings.init_optimizer(RowwiseAdagrad(0.1)),
    )
    return jax.block_until_ready(state), embeddings


def check(state: TrainState, plan: Plan, source: Plan) -> None:
    """Compares rows of all tables with those of a state that ``source`` filled."""
    (here,), (there,) = plan.storages, source.storages
    array = state.storages[here.name]
    mine, theirs = table_layouts([here]), table_layouts([there])
    for table, (layout,) in mine.items():
        (source,) = theirs[table]
        for begin in (0, layout.end // 3, layout.end - ROWS):
            found = np.zeros((ROWS, DIM), np.float32)
            expected = np.zeros((ROWS, DIM), np.float32)
            for k, among, slots in _shards(layout, begin):
                columns = slice(k * layout.width, (k + 1) * layout.width)
                found[among, columns] = _rows(array, slots)
            for k, among, slots in _shards(source, begin):
                width = source.width
                columns = slice(k * width, (k + 1) * width)
                numbers = np.arange(slots.start, slots.stop)[
                    :, None
                ] * width + np.arange(width)
                expected[among, columns] = numbers & MASK
            np.testing.assert_array_equal(found, expected)


def _rows(array: jax.Array, rows: range) -> np.ndarray:
    """Of the one device that has them."""
    for shard in array.addressable_shards:
        begin = shard.index[0].start or 0
        if rows.start in range(begin, begin + len(shard.data)):
            return np.asarray(shard.data)[rows.start - begin : rows.stop - begin]
    raise AssertionError


def _shards(layout: RangeLayout, begin: int):
    for j in range(layout.row_shards):
        held = layout.held_rows(j, begin, begin + ROWS)
        for k in range(layout.column_shards):
            first = layout.first_slots[j][k] + held.first
            yield k, held.among, range(first, first + held.count)


def _fill(shape: tuple[int, int]) -> jax.Array:
    row = lax.broadcasted_iota(jnp.uint32, shape, 0)
    column = lax.broadcasted_iota(jnp.uint32, shape, 1)
    return ((row * shape[1] + column) & MASK).astype(jnp.float32)
