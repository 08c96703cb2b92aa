"""Tables in 16 bits, whose updates are rounded stochastically."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from embark_kernels import SGD, Adagrad
from embark_kernels.rounding import round_stochastically

from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.plans.placement import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from tests.builders import make_plan, tables_of
from tests.embedding import reference
from tests.embedding.problems import batches, begin
from tests.thorough import thorough

DTYPES = ["bfloat16", "float16"]
FEATURES = [FeatureSpec("a", hotness=3), FeatureSpec("b", "a"), FeatureSpec("c")]


def tables(dtype):
    return TableSpec("a", 29, 8, 0.5, dtype=dtype), TableSpec("c", 11, 8, 0.5)


def neighbours(values, dtype):
    """The largest number of the format that is not above, the smallest not below."""
    kind = np.dtype(dtype)
    nearest = values.astype(kind)
    above = nearest.astype(np.float64) > values
    down, up = (np.array(each, kind) for each in (-np.inf, np.inf))
    low = np.where(above, np.nextafter(nearest, down), nearest)
    high = np.where(above | (nearest == values), nearest, np.nextafter(nearest, up))
    return low.astype(np.float64), high.astype(np.float64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_value_becomes_a_neighbour_and_is_right_on_average(dtype):
    rng = np.random.default_rng(0)
    # From where float16 has no normal numbers, to large ones, of both signs.
    values = rng.normal(size=300) * 10 ** rng.uniform(-6, 4, 300)
    values = values.astype(np.float32)
    draws = 4000
    bits = rng.integers(0, 2**32, (draws, 300), np.uint32)
    rounded = round_stochastically(
        jnp.broadcast_to(values, bits.shape), jnp.asarray(bits), dtype
    )
    found = np.asarray(rounded).astype(np.float64)
    low, high = neighbours(values, getattr(ml_dtypes, dtype, np.float16))
    assert ((found == low) | (found == high)).all()
    deviation = (high - low) / 2 / draws**0.5  # at most
    assert (np.abs(found.mean(axis=0) - values) <= 5 * deviation).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_the_format_has_stays(dtype):
    values = jnp.asarray([0, 1, -1, 1.5, -0.0078125, 2.0**-14, 3 * 2.0**-20, 640])
    for bits in (0, 2**32 - 1):
        rounded = round_stochastically(
            values, jnp.full(values.shape, bits, jnp.uint32), dtype
        )
        np.testing.assert_array_equal(rounded.astype(jnp.float32), values)


def whole_gradients(batch):
    """Gradients whose sums are exact in any order."""
    ids, weights, gradients = batch
    return ids, weights, {n: np.round(4 * each) / 64 for n, each in gradients.items()}


@pytest.mark.parametrize("dtype", thorough(DTYPES, ["bfloat16"]))
def test_the_mean_over_steps_is_the_exact_update(dtype):
    """From the same rows, with the random bits of many steps."""
    a, c = tables(dtype)
    placed = [Placement(a, "rb", 3, 2, (0,) * 6), Placement(c, "dp")]
    planned = make_plan(FEATURES, placed, 1, 1, 16)
    collection, storages, state, step = begin(planned, SGD(0.01))
    batch = next(batches(collection.plan, 1))
    ids, weights, gradients = batch
    begun = tables_of(collection, storages)
    exact = {name: each.astype(np.float64) for name, each in begun.items()}
    looked_up = reference.lookup(exact, FEATURES, ids, weights)
    dense, touched = reference.row_gradients(exact, FEATURES, ids, weights, gradients)
    reference.update(exact["a"], {}, dense["a"], touched["a"], SGD(0.01), 1)
    steps, found = 100, []
    for number in range(1, steps + 1):
        after, _, rows, _ = step(storages, state, batch, number)
        found.append(tables_of(collection, after)["a"].astype(np.float64))
    for name, each in looked_up.items():
        np.testing.assert_allclose(rows[name], each, rtol=1e-5, atol=1e-6)
    mean, begun = np.mean(found, axis=0), begun["a"].astype(np.float64)
    low, high = neighbours(exact["a"], getattr(ml_dtypes, dtype, np.float16))
    deviation = (high - low) / 2 / steps**0.5  # at most
    assert (np.abs(mean - exact["a"]) <= 5 * deviation + 1e-7).all()
    # Together: rounding to the nearest would lose most of these updates.
    change = np.abs(exact["a"] - begun).sum()
    assert np.abs(mean - begun).sum() > 0.9 * change > 0
    untouched = ~touched["a"]
    assert untouched.any()
    assert (np.array(found)[:, untouched] == begun[untouched]).all()


OWNERS = (7, 0, 3, 5, 7, 1)
PLACED = {
    "dp": ((1, 1), {}),
    "rb": ((2, 4), {"cluster": "rb", "exchange": "hierarchical"}),
    "ub": ((2, 4), {"cluster": "ub", "hot_rows": 2}),
}


@pytest.mark.slow
def test_no_plan_or_mesh_changes_the_rounding():
    a, c = tables("bfloat16")
    results = []
    for mesh, how in PLACED.values():
        placement = Placement(a, "dp")
        if how:
            shards = {"row_shards": 3, "column_shards": 2, "devices": OWNERS}
            placement = Placement(a, **how, **shards)
        placed = [placement, Placement(c, "dp")]
        planned = make_plan(FEATURES, placed, *mesh, 16)
        collection, _, state, step = begin(planned, Adagrad(0.01))
        storages = collection.init(jax.random.key(0))  # the same rows in every plan
        rounded = collection.clusters.keys() - {"dp_8"}
        assert all("bfloat16" in name for name in rounded)
        for number, batch in enumerate(batches(collection.plan, 1), start=1):
            batch = whole_gradients(batch)
            storages, state, *_ = step(storages, state, batch, number)
        results.append(tables_of(collection, storages)["a"])
        assert results[-1].dtype == jnp.bfloat16
    for each in results[1:]:
        np.testing.assert_array_equal(each, results[0])


def test_kernels_refuse_what_they_cannot_read():
    a, c = tables("float16")
    planned = make_plan(FEATURES, [Placement(a, "dp"), Placement(c, "dp")], 1, 1, 16)
    with pytest.raises(ValueError, match="mosaic_gpu: table is float16"):
        EmbeddingCollection(planned, planned.make_mesh(), implementation="mosaic_gpu")
