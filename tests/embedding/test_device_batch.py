"""A batch goes to the devices in one array, and its columns come out of it."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from embark_jax.data import Batch, DataError
from embark_jax.embedding.device_batch import abstract_batch, own_samples, put_batch
from embark_jax.plans.plan import MESH_AXES, Plan
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec

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
    on_devices = put_batch(batch, mesh, SAMPLES)
    (words,) = jax.tree.leaves(on_devices)
    assert words.sharding.spec == PartitionSpec(MESH_AXES)
    assert len(words.addressable_shards) == 4
    equal_columns(jax.jit(lambda each: each.columns())(on_devices), batch)
    expected = abstract_batch(PLAN, mesh, DENSE, wide={"wide"})
    assert on_devices.layout == expected.layout
    assert (words.shape, words.dtype) == (expected.words.shape, expected.words.dtype)
    assert words.sharding == expected.words.sharding


def test_a_short_batch_is_filled_up_with_empty_samples():
    batch = draw(5)
    filled = own_samples(batch, SAMPLES)
    assert len(filled) == SAMPLES
    equal_columns(Batch.of(filled.to_records()[:5]), batch)
    rest = Batch.of(filled.to_records()[5:])
    assert all((ids == -1).all() for ids in rest.ids.values())
    for zeros in (rest.dense, rest.labels, rest.weights["bag"]):
        assert not zeros.any()
    with pytest.raises(DataError, match="has 9 samples, must have at most 8"):
        own_samples(draw(9), SAMPLES)
    with pytest.raises(DataError, match="has 5 samples, must have 8"):
        put_batch(batch, PLAN.make_mesh(), SAMPLES)
