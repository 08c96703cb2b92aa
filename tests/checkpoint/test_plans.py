"""Any plan writes a checkpoint, any other plan reads it, bit for bit."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from embark_jax.checkpoint import Checkpointer
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.train.state import TrainState
from tests.embedding import problems

WIDE, NARROW = "momentum", "accumulator"
"""Optimizer states as wide as a row, and with one value a row."""


def logical_tables(tables, seed):
    """Random rows of each table and of its optimizer states."""
    rng = np.random.default_rng(seed)
    return {
        (table.name, kind): rng.normal(
            size=(table.rows, 1 if kind == NARROW else table.dim)
        ).astype(np.float32)
        for table in tables
        for kind in ("", WIDE, NARROW)
    }


def lay_out(plan, storage, kind, logical):
    """The array of a storage, or of a state of it, as the plan says; row by row."""
    copies = 1 if storage.replicated else plan.devices
    width = 1 if kind == NARROW else storage.width
    array = np.zeros((copies, storage.slots_per_device, width), np.float32)
    for held in storage.ranges:
        name, rows = held.table.name, np.arange(held.rows)
        row_shard, place = rows % held.row_shards, rows // held.row_shards
        for k in range(held.column_shards):
            owner = storage.owners(name)[row_shard, k]
            slot = storage.first_slots[name][row_shard, k] + place
            columns = slice(None) if kind == NARROW else slice(k * width, None)
            hot = np.array(held.hot_ids, int)
            others = np.delete(np.arange(held.table.rows), hot)
            order = np.concatenate([hot, others])
            mine = logical[name, kind][order][held.begin : held.end]
            array[owner, slot] = mine[:, columns][:, :width]
    return array.reshape(-1, width)


def build(plan, logical):
    """A state that holds the tables; zeros where there are none to hold."""
    embeddings = EmbeddingCollection(plan, plan.make_mesh())
    replicated = NamedSharding(embeddings.mesh, PartitionSpec())

    def put(value, sharding=replicated):
        # A copy: JAX may not overwrite what NumPy holds.
        return jax.jit(jnp.copy, out_shardings=sharding)(value)

    def arrays(kind):
        return {
            s.name: put(lay_out(plan, s, kind, logical), embeddings.shardings[s.name])
            for s in plan.storages
        }

    of_states = {kind: arrays(kind) for kind in (WIDE, NARROW)}
    seed = int(abs(next(iter(logical.values()))[0, 0]) * 1e6)
    key = jax.jit(lambda: jax.random.key(seed), out_shardings=replicated)()
    state = TrainState(
        step=put(np.int32(7)),
        halted=put(np.bool_(False)),
        params={"w": put(next(iter(logical.values()))[:1])},
        dense_state=(),
        model_state={"key": key},
        storages=arrays(""),
        embedding_state={
            s.name: {kind: of_states[kind][s.name] for kind in of_states}
            for s in plan.storages
        },
    )
    return state, embeddings


def assert_moves(source, target, seed, memory=None):
    tables = logical_tables(source.plan.tables, seed)
    zeros = {name: np.zeros_like(rows) for name, rows in tables.items()}
    with tempfile.TemporaryDirectory() as folder:
        state, embeddings = build(source.plan, tables)
        with Checkpointer(Path(folder), {}, 1, memory) as checkpoints:
            checkpoints.save(state, 7, embeddings, {})
        expected, embeddings = build(target.plan, tables)
        blank, _ = build(target.plan, zeros)
        with Checkpointer(Path(folder), {}, None, memory) as checkpoints:
            found, _ = checkpoints.restore(blank, embeddings)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for mine, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert mine.sharding.is_equivalent_to(theirs.sharding, theirs.ndim)
        if jnp.issubdtype(theirs.dtype, jax.dtypes.prng_key):
            mine, theirs = map(jax.random.key_data, (mine, theirs))
        np.testing.assert_array_equal(mine, theirs)


@st.composite
def two_plans(draw):
    """Two problems with the same tables, and all else different."""
    source = draw(problems.problems())
    nodes, gpus = draw(st.sampled_from(problems.MESHES))
    placed = draw(problems.placements(source.plan.tables, nodes * gpus))
    plan = problems.make_plan(source.plan.features, placed, nodes, gpus, nodes * gpus)
    return source, problems.Problem(plan, source.optimizer, 0)


@hypothesis.settings(max_examples=6)
@hypothesis.given(two_plans(), st.integers(0, 2**16))
def test_any_plan_reads_what_any_other_wrote(plans, seed):
    assert_moves(*plans, seed)


slow = functools.partial(pytest.param, marks=pytest.mark.slow)


def placed(cluster, rows, columns, owners, hot_share=0.0):
    return lambda table: Placement(
        table,
        cluster,
        rows,
        columns,
        owners,
        hot_rows=round(hot_share * table.rows),
    )


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (placed("rb", 3, 1, (0, 1, 2)), placed("ub", 2, 2, (2, 2, 1, 0))),
        slow(placed("ub", 2, 2, (2, 2, 1, 0)), placed("rb", 3, 1, (0, 1, 2))),
        slow(placed("dp", 1, 1, ()), placed("rb", 3, 1, (0, 1, 2))),
        slow(placed("rb", 3, 1, (0, 1, 2)), placed("dp", 1, 1, ())),
        slow(placed("rb", 3, 1, (0, 1, 2)), placed("ub", 2, 2, (2, 2, 1, 0), 0.6)),
        (placed("ub", 2, 2, (2, 2, 1, 0), 0.6), placed("rb", 2, 1, (2, 1), 0.3)),
    ],
    ids=[
        "rows to columns",
        "columns to rows",
        "replicated to rows",
        "to replicated",
        "to hot rows",
        "from hot rows",
    ],
)
def test_tables_of_several_pieces_move_in_little_memory(there, here):
    tables = TableSpec("large", 700_001, 4), TableSpec("small", 11, 4)
    features = [FeatureSpec(table.name, table.name) for table in tables]
    both = [
        problems.Problem(
            problems.make_plan(features, tuple(map(each, tables)), 3, 1, 3),
            problems.OPTIMIZERS["sgd"],
            0,
        )
        for each in (there, here)
    ]
    assert_moves(*both, seed=1, memory=1)
