"""Any 64 bits are a key: hashes and numbers of keys, and the bytes in which they
travel."""

from collections import Counter

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import embark_jax as ej
from embark_jax.embedding.keys import (
    hash_words,
    keys_of,
    number_keys,
    row_shard_of,
    words_of,
)
from embark_jax.planner import Workload
from embark_jax.planner.cost.exchanges import exchange_work
from embark_jax.planner.cost.work import Peak
from embark_jax.plans.placement import Placement
from tests.builders import make_plan
from tests.cache.rows_by_key import EXTREME
from tests.collectives import counted

some_keys = st.lists(
    st.sampled_from(EXTREME) | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20
)


def weak_hash(words, seed):
    """Returns hashes of which many are alike."""
    return hash_words(words, seed) % np.uint32(2)


@pytest.mark.parametrize("hash_of_words", [hash_words, weak_hash])
def test_different_keys_are_numbered(hash_of_words, monkeypatch):
    monkeypatch.setattr("embark_jax.embedding.keys.hash_words", hash_of_words)
    number = jax.jit(lambda keys, wanted: number_keys(words_of(keys), wanted))

    @hypothesis.given(some_keys, st.integers(0, 2**20 - 1))
    @hypothesis.settings(max_examples=40, database=None)
    def check(keys, mask):
        keys = np.resize(keys, 20)
        wanted = np.array([mask >> i & 1 for i in range(20)], bool)
        with jax.enable_x64(True):
            on_devices = jnp.asarray(keys)
        numbers = np.asarray(number(on_devices, wanted))
        assert (numbers[~wanted] == 20).all()
        pairs = set(zip(keys[wanted].tolist(), numbers[wanted].tolist(), strict=True))
        different = set(keys[wanted].tolist())
        assert len(pairs) == len(different)
        assert {number for _, number in pairs} == set(range(len(different)))

    check()


def test_hosts_and_devices_hash_alike():
    keys = words_of(np.array([*EXTREME, *range(100)]))
    np.testing.assert_array_equal(keys_of(keys), [*EXTREME, *range(100)])
    for row_shards in (1, 3, 8):
        np.testing.assert_array_equal(
            row_shard_of(jnp.asarray(keys), row_shards), row_shard_of(keys, row_shards)
        )


@pytest.mark.parametrize(
    ("tier", "cluster", "exchange"),
    [
        ("dynamic", "ub", "flat"),
        ("dynamic", "rb", "flat"),
        ("host", "ub", "hierarchical"),
        ("host", "rb", "flat"),
    ],
)
def test_keys_travel_in_as_many_bytes_as_planned(tier, cluster, exchange):
    table = ej.TableSpec.dynamic("user", 4, 64, 64)
    if tier == "host":
        table = ej.TableSpec("user", 2**40, 4, tier="host", slots=64)
    placed = [Placement(table, cluster, 8, 1, tuple(range(8)), exchange=exchange)]
    capacity = 5
    plan = make_plan([ej.FeatureSpec("user", hotness=2)], placed, 2, 4, 16, capacity)
    collection = ej.EmbeddingCollection(plan, plan.make_mesh())
    ids = jax.ShapeDtypeStruct((16, 2), jnp.int32)
    route = jax.jit(lambda ids: collection.route({"user": ids}, {}))
    with jax.enable_x64(True):
        compiled = route.lower(ids).compile()
    (storage,) = plan.storages
    workload = Workload(ej.fleets.dgx_h100(2, 4), 16, optimizer="sgd")
    sizes = Counter()
    for peak, work in exchange_work(storage.kind, workload):
        if work.phase == "id exchange":
            units = capacity if peak == Peak.IDS else 1
            sizes[work.reach] += int(units * work.buffer_bytes)
    expected = Counter(("all_to_all", size) for size in sizes.values())
    found = counted(str(compiled.as_text()))
    del found["all_reduce", 8]  # of the capacity that is needed, and of bad ids
    assert found == expected
