"""Owners and slots of ids against plain Python, for tables of billions of rows too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import embark_jax as ej
from embark_jax.embedding.indexing import index_storage
from embark_jax.plans.layout import lay_out
from embark_jax.plans.placement import Placement
from embark_jax.plans.plan import MESH_AXES

BILLIONS = 5_000_000_000


@pytest.mark.parametrize("rows", [50, BILLIONS // 2])
def test_each_id_finds_its_row(rows):
    """Row r of a table is row r // n of row shard r % n, behind what lies before it."""
    before = ej.TableSpec("before", 10, 8)
    table = ej.TableSpec("t", rows, 8)
    owners = (2, 0, 1, 3, 4, 2)
    placements = [
        Placement(before, "ub", 1, 2, (3, 3)),
        Placement(table, "ub", 3, 2, owners),
    ]
    features = [ej.FeatureSpec("f", "t", hotness=4)]
    (storage,) = lay_out(placements, features, 5)
    index = index_storage(storage, features, 5, 2)
    (block,) = index.blocks
    ids = np.array([[0, 1, rows - 1, -1], [rows - 2, rows // 2, -1, 3]], np.int64)
    with jax.enable_x64(True):
        _, owner, slot = jax.jit(block.expand)(jnp.asarray(ids))
    assert owner.dtype == slot.dtype == jnp.int32

    shard_rows = [len(range(j, rows, 3)) for j in range(3)]
    # Device 3 holds both halves of "before" first; device 2 shard (0, 0), then (2, 1).
    first = dict.fromkeys(np.ndindex(3, 2), 0) | {(1, 1): 20, (2, 1): shard_rows[0]}
    for sample in range(2):
        for k in range(2):
            for place in range(4):
                entry, r = k * 4 + place, int(ids[sample, place])
                if r < 0:
                    assert owner[sample, entry] == 5
                    assert slot[sample, entry] == storage.slots_per_device
                else:
                    assert owner[sample, entry] == owners[2 * (r % 3) + k]
                    assert slot[sample, entry] == first[r % 3, k] + r // 3


def test_a_device_updates_no_more_rows_than_samples_can_touch():
    """Device 2 has two of six shards; nobody asks for the others of that device."""
    placements = [
        Placement(ej.TableSpec("unread", 10, 8), "ub", 1, 2, (3, 3)),
        Placement(ej.TableSpec("t", 500, 8), "ub", 3, 2, (2, 0, 1, 3, 4, 2)),
    ]
    features = [ej.FeatureSpec("f", "t", hotness=4), ej.FeatureSpec("g", "t")]
    (storage,) = lay_out(placements, features, 5)
    max_rows = [index_storage(storage, features, 5, n).max_rows for n in (1, 100)]
    assert max_rows == [2 * 5 * (4 + 1), 167 + 166]


def billions_of_rows(cluster):
    """A table on 8 devices, read by one feature."""
    planned = ej.plan(
        [ej.TableSpec("t", BILLIONS, 4)],
        [ej.FeatureSpec("f", "t", hotness=2)],
        ej.fleets.dgx_h100(),
        16,
        forced={"t": ej.ForcedPlacement(cluster, 8, devices=tuple(range(8)))},
    )
    return ej.EmbeddingCollection(planned, planned.make_mesh())


@pytest.mark.parametrize("cluster", ["rb", "ub"])
def test_a_table_of_billions_of_rows_is_routed(cluster):
    """64-bit ids reach their owners outside any 64-bit mode, without 64-bit floats."""
    collection = billions_of_rows(cluster)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, BILLIONS, (16, 2))
    with jax.enable_x64(True):
        sharding = NamedSharding(collection.mesh, PartitionSpec(MESH_AXES))
        on_devices = jax.device_put(ids, sharding)
    route = jax.jit(lambda ids: collection.route({"f": ids}, {}))
    assert "f64" not in route.lower(on_devices).as_text()

    routes = route(on_devices)
    assert not routes.any_bad
    with jax.enable_x64(True):
        far = np.where(np.arange(32).reshape(16, 2) % 3, ids, BILLIONS + 2**32)
        on_devices = jax.device_put(far, sharding)
    assert int(np.sum(route(on_devices).bad_ids)) == 11
    found = routes.storages[f"{cluster}_4"]
    received = found.received.slot if cluster == "rb" else found.slot
    owners, rows = ids % 8, ids // 8
    for device, slots in enumerate(np.asarray(received.reshape(8, -1))):
        held = slots[slots < BILLIONS // 8]
        assert sorted(held) == sorted(rows[owners == device])


def test_32_bit_ids_are_routed_in_a_table_of_billions_of_rows():
    """Who has low ids alone may keep them so."""
    collection = billions_of_rows("rb")
    ids = np.random.default_rng(0).integers(0, 2**31, (16, 2))
    ids[0] = 0, 2**31 - 1
    sharding = NamedSharding(collection.mesh, PartitionSpec(MESH_AXES))
    route = jax.jit(lambda ids: collection.route({"f": ids}, {}))
    narrow = route(jax.device_put(ids.astype(np.int32), sharding))
    with jax.enable_x64(True):
        wide = route(jax.device_put(ids, sharding))
    jax.tree.map(np.testing.assert_array_equal, narrow, wide)
