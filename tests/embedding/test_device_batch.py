"""A batch goes to the devices in one array, and its columns come out of it; the events
of sequences go in another."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from embark_jax.data import Batch, BatchChecker, DataError
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.plans.capacities import events_of
from embark_jax.plans.plan import MESH_AXES, Plan
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.train.device_batch import (
    abstract_batch,
    own_samples,
    put_batch,
)
from tests.builders import make_plan
from tests.embedding import problems

SAMPLES, DENSE = 8, 3
TABLES = {"small": TableSpec("small", 50, 4), "huge": TableSpec("huge", 5 * 10**9, 4)}
FEATURES = (
    FeatureSpec("one", "small"),
    FeatureSpec("wide", "huge", hotness=2),
    FeatureSpec("bag", "small", hotness=3, weighted=True),
)
PLAN = Plan(
    FEATURES,
    tuple(Placement(table, "rb", 4, 1, (0, 1, 2, 3)) for table in TABLES.values()),
    nodes=2,
    gpus_per_node=2,
    batch_size=SAMPLES,
    capacities={"rb_4": 64, "rb_4_weighted": 64},
)


def draw(samples: int) -> Batch:
    rng = np.random.default_rng(samples)
    types = {"one": np.int32, "wide": np.int64, "bag": np.int32}
    return Batch(
        rng.standard_normal((samples, DENSE), np.float32),
        {
            f.name: rng.integers(
                -1, TABLES[f.table].rows, (samples, f.hotness), types[f.name]
            )
            for f in FEATURES
        },
        rng.integers(0, 2, samples).astype(np.float32),
        {"bag": rng.standard_normal((samples, 3), np.float32)},
    )


def equal_columns(columns, batch: Batch) -> None:
    for kind in ("ids", "weights"):
        found, expected = getattr(columns, kind), getattr(batch, kind)
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            assert found[name].dtype == values.dtype
            np.testing.assert_array_equal(found[name], values)
    np.testing.assert_array_equal(columns.dense, batch.dense)
    np.testing.assert_array_equal(columns.labels, batch.labels)


def test_columns_are_those_of_the_batch():
    batch, mesh = draw(SAMPLES), PLAN.make_mesh()
    on_devices = put_batch(batch, PLAN, mesh)
    equal_columns(jax.jit(lambda each: each.columns())(on_devices), batch)
    expected = abstract_batch(PLAN, mesh, DENSE, wide={"wide"})
    assert jax.tree.structure(on_devices) == jax.tree.structure(expected)
    for found, wanted in zip(
        *map(jax.tree.leaves, (on_devices, expected)), strict=True
    ):
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        assert found.sharding == wanted.sharding
        assert found.sharding.spec == PartitionSpec(MESH_AXES)


def test_a_short_batch_is_filled_up_with_empty_samples():
    batch = draw(5)
    filled = own_samples(batch, SAMPLES)
    assert len(filled) == SAMPLES
    equal_columns(filled.part(0, 5), batch)
    rest = filled.part(5, SAMPLES)
    assert all((ids == -1).all() for ids in rest.ids.values())
    for zeros in (rest.dense, rest.labels, rest.weights["bag"]):
        assert not zeros.any()
    with pytest.raises(DataError, match="has 9 samples, must have at most 8"):
        own_samples(draw(9), SAMPLES)
    with pytest.raises(DataError, match="has 5 samples, must have 8"):
        put_batch(batch, PLAN, PLAN.make_mesh())


SEQUENCES = (
    FeatureSpec("one", "small"),
    FeatureSpec("past", "small", 6, "none", weighted=True),
    FeatureSpec("wide", "huge", 5, "none"),
)
CHECK = BatchChecker(SEQUENCES, {t.name: t.rows for t in TABLES.values()})


def plan_of(**room: int) -> Plan:
    """Of the sequences, on 2 × 2 devices with two samples each."""
    placements = [Placement(t, "ub", 4, 1, (0, 1, 2, 3)) for t in TABLES.values()]
    plan = make_plan(SEQUENCES, placements, 2, 2, SAMPLES, 64)
    capacities = {events_of(name): events for name, events in room.items()}
    return dataclasses.replace(plan, capacities={**plan.capacities, **capacities})


def draw_sequences() -> Batch:
    rng = np.random.default_rng(1)
    ids = {
        f.name: rng.integers(0, TABLES[f.table].rows, (SAMPLES, f.hotness))
        for f in SEQUENCES
    }
    for name in ("past", "wide"):
        place = np.arange(ids[name].shape[1])
        begin, end = np.sort(rng.integers(0, len(place) + 1, (2, SAMPLES, 1)), 0)
        ids[name][(place < begin) | (place >= end)] = -1
    dense = rng.standard_normal((SAMPLES, DENSE), np.float32)
    weights = {"past": rng.standard_normal((SAMPLES, 6), np.float32)}
    return CHECK(Batch(dense, ids, np.zeros(SAMPLES, np.float32), weights))


def test_only_events_go_to_the_devices():
    plan = plan_of(past=11)
    collection = EmbeddingCollection(plan, mesh := plan.make_mesh())
    batch = draw_sequences()
    placed = put_batch(batch, plan, mesh)
    expected = abstract_batch(plan, mesh, DENSE, wide={"wide"})
    assert jax.tree.structure(placed) == jax.tree.structure(expected)
    assert [x.shape for x in jax.tree.leaves(placed)] == [
        x.shape for x in jax.tree.leaves(expected)
    ]
    assert placed.has_room(plan.events)
    assert not placed.has_room({**plan.events, "past": 10})
    assert {len(matrix) for matrix in placed.events.values()} == {4}

    @jax.jit
    def padded(batch):
        columns = batch.columns()
        return columns._replace(
            ids=problems.padded(collection, columns.ids, columns.spans),
            weights=problems.padded(collection, columns.weights, columns.spans),
        )

    equal_columns(padded(placed), batch)
