"""The compiled train step, and that no plan changes the initial tables."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from embark_kernels import SGD, Adagrad, LazyAdam, RowwiseAdagrad

import embark_jax as ej
from embark_jax.train.step import ARRAYS_A_CHECK, _all_finite
from tests.compiled import bytes_per_device, compile_step

# 4 million rows × 128 × 4 bytes: 2 GB of tables, compiled from shapes alone.
LARGE_TABLES = (ej.TableSpec("a", 3_000_000, 128), ej.TableSpec("b", 1_000_000, 128))
LARGE_FEATURES = (ej.FeatureSpec("fa", "a", hotness=3), ej.FeatureSpec("fb", "b"))


@functools.cache
def compile_large(cluster, batch, optimizer):
    """The step for ``LARGE_TABLES``, all in one cluster, and its abstract state."""
    row_shards = None if cluster == "dp" else 8
    planned = ej.plan(
        LARGE_TABLES,
        LARGE_FEATURES,
        ej.fleets.dgx_h100(),
        batch,
        forced=dict.fromkeys("ab", ej.ForcedPlacement(cluster, row_shards)),
    )
    return compile_step(
        planned, planned.make_mesh(), optimizer, bottom=(8,), top=(8, 1), rank=8
    )


# Each cluster is there, and each kind of state.
@pytest.mark.parametrize(
    ("cluster", "optimizer"),
    [
        pytest.param("dp", LazyAdam(0.1), marks=pytest.mark.slow),
        ("rb", RowwiseAdagrad(0.1)),
        pytest.param("ub", Adagrad(0.1), marks=pytest.mark.slow),
        pytest.param("ub", SGD(0.1), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_tables_are_updated_in_place(cluster, optimizer):
    compiled, state = compile_large(cluster, 2048, optimizer)
    memory = compiled.memory_analysis()
    tables = bytes_per_device(state.storages)
    states = bytes_per_device(state.embedding_state)
    assert tables == math.prod((4_000_000, 128, 4)) / (1 if cluster == "dp" else 8)
    assert memory.alias_size_in_bytes >= tables + states
    assert memory.temp_size_in_bytes < tables / 10


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["dp", "rb", "ub"])
def test_no_table_is_copied_by_loops_over_a_large_batch(cluster):
    """On CPU lookups and updates of many ids are loops that tables go through."""
    compiled, state = compile_large(cluster, 65_536, RowwiseAdagrad(0.1))
    (storage,) = state.storages.values()
    slots, width = storage.sharding.shard_shape(storage.shape)
    hlo = compiled.as_text()
    assert f"f32[{slots},{width}]" in hlo
    assert "while(" in hlo
    assert not re.findall(rf"f32\[{slots},{width}\]\S* copy\(", hlo)


@pytest.mark.parametrize(
    ("row_shards", "cluster", "rows"),
    [
        (3, "ub", 300),
        # With a row shard of cold rows.
        pytest.param(8, "rb", 3000, marks=pytest.mark.slow),
    ],
)
def test_initial_tables_do_not_depend_on_the_plan(row_shards, cluster, rows):
    tables, features = [ej.TableSpec("a", rows, 8)], [ej.FeatureSpec("fa", "a", 3)]

    def initial(nodes, gpus, forced):
        machines = ej.fleets.dgx_h100(nodes, gpus)
        planned = ej.plan(tables, features, machines, batch=64, forced=forced)
        embeddings = ej.EmbeddingCollection(planned, planned.make_mesh())
        return ej.export_table(embeddings, embeddings.init(jax.random.key(4)), "a")

    expected = initial(1, 1, {})
    scale = rows**-0.5
    assert np.abs(expected).max() <= scale
    assert np.abs(expected).mean() == pytest.approx(scale / 2, rel=0.1)
    assert len(np.unique(expected)) > 0.99 * expected.size
    forced = ej.ForcedPlacement(cluster, row_shards, 2, hot_rows=20)
    found = initial(2, 4, {"a": forced})
    np.testing.assert_array_equal(found, expected)


def test_products_of_float32_are_not_rounded_to_fewer_bits():
    """As XLA does on newer GPUs, unless told otherwise."""
    compiled, _ = compile_large("rb", 2048, RowwiseAdagrad(0.1))
    products = re.findall(r"= f32\S* dot\(.*", compiled.as_text())
    assert len(products) > 10
    assert all("operand_precision={highest,highest}" in each for each in products)


@pytest.mark.parametrize("alike", [True, False])
def test_one_value_that_is_not_finite_is_found_in_any_array(alike):
    arrays = [
        *[jnp.zeros((3, 5))] * ARRAYS_A_CHECK,
        jnp.zeros((3, 5), jnp.bfloat16),
        jnp.zeros((5, 3)),
        jnp.zeros(()),
        jnp.arange(15),
        jax.random.key(0),
    ]
    params = 5  # and what an optimizer keeps of them

    @jax.jit
    def found(arrays):
        return _all_finite(arrays[:params], arrays[params:], alike)

    assert found(arrays)
    for number, array in enumerate(arrays[:-2]):
        for place in {0, array.size // 2, array.size - 1}:
            for value in (jnp.nan, jnp.inf, -jnp.inf):
                spoiled = array.ravel().at[place].set(value).reshape(array.shape)
                changed = [*arrays[:number], spoiled, *arrays[number + 1 :]]
                assert not found(changed), (number, place, value)
