"""The worked example of ``embark_jax/embedding/README.md``, number by number."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import embark_jax as ej
import embark_jax.embedding
from embark_jax.cache.key_index import KeyIndex, empty_index, resolve
from embark_jax.embedding.collection import index_of
from embark_jax.plans.storage import Placement
from tests.builders import make_plan, tables_of
from tests.embedding.problems import step_of

README = (Path(embark_jax.embedding.__path__[0]) / "README.md").read_text()
TABLES = {"user": ej.TableSpec("user", 10, 4), "city": ej.TableSpec("city", 6, 4)}
FEATURES = (
    ej.FeatureSpec("user", hotness=3),
    ej.FeatureSpec("city", "city", 2, "mean"),
)
PLACED = (
    Placement(TABLES["user"], "rb", 4, 1, (0, 1, 2, 3), hot_rows=2),
    Placement(TABLES["city"], "ub", 2, 1, (1, 2)),
)
PLAN = make_plan(FEATURES, PLACED, 2, 2, 4, {"rb_4": 3, "ub_4": 2})
IDS = {"user": [1, 5, 7], "city": [4, 4]}
UNIT = {"user": 1.0, "city": 10.0}


def rows_of(heading):
    """The cells of the table that begins with a heading."""
    lines = [line.strip() for line in README.splitlines()]
    first = lines.index(heading) + 2
    last = next(i for i in range(first, len(lines)) if not lines[i].startswith("|"))
    return [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in lines[first:last]
    ]


@pytest.fixture(scope="module")
def solved():
    """Lookups of the batch, and tables after its update."""
    collection = ej.EmbeddingCollection(PLAN, PLAN.make_mesh())
    storages = {}
    for storage in PLAN.storages:
        blocks = np.zeros((4, storage.slots_per_device, 4), np.float32)
        for name, slot, *devices in rows_of(LAYOUT):
            for device, held in enumerate(devices):
                if name == storage.name and held:
                    table, row = held.split()
                    blocks[device, int(slot)] = UNIT[table] * int(row)
        array = blocks[0] if storage.replicated else blocks.reshape(-1, 4)
        sharding = collection.shardings[storage.name]
        storages[storage.name] = jax.device_put(array, sharding)
    ids = {name: np.full((4, len(bag)), -1, np.int32) for name, bag in IDS.items()}
    for name, bag in IDS.items():
        ids[name][0] = bag
    gradients = {name: jnp.ones((4, 4)) for name in IDS}
    step = step_of(collection, ej.SGD(0.1))
    state = {name: {} for name in storages}
    updated, _, found, _ = step(storages, state, (ids, {}, gradients), 1)
    return found, tables_of(collection, updated)


LAYOUT = "| storage | slot | device 0 | device 1 | device 2 | device 3 |"


def test_rows_lie_where_it_says():
    for storage in PLAN.storages:
        cells = [row for row in rows_of(LAYOUT) if row[0] == storage.name]
        assert len(cells) == storage.slots_per_device
    found = {}
    for name, slot, *devices in rows_of(LAYOUT):
        for device, held in enumerate(devices):
            if held:
                found.setdefault((name, held), []).append((device, int(slot)))
    for storage in PLAN.storages:
        (block,) = index_of(PLAN, storage).blocks
        for feature in block.features:
            column, table = feature.columns.start, feature.feature.table
            own = [row for name, row in found if name == storage.name]
            rows = [int(row.split()[1]) for row in own if row.split()[0] == table]
            ids = np.full((10, block.columns), -1, np.int32)
            ids[: len(rows), column] = rows
            _, owner, slot = block.expand(jnp.asarray(ids))
            for i, row in enumerate(rows):
                places = found.pop((storage.name, f"{table} {row}"))
                if storage.replicated:
                    assert places == [(d, int(slot[i, column])) for d in range(4)]
                else:
                    assert places == [(int(owner[i, column]), int(slot[i, column]))]
    assert not found


def test_ids_are_found_where_it_says():
    layout = rows_of(LAYOUT)
    for name, storage, owner, slot in rows_of("| id | storage | owner | slot |"):
        (devices,) = [row[2:] for row in layout if row[:2] == [storage, slot]]
        owners = range(4) if owner == "every device" else [int(owner)]
        assert all(devices[device] == name for device in owners)


def test_bags_and_rows_are_what_it_says(solved):
    found, tables = solved
    assert "1 + 5 + 7 = 13 for `user`" in README
    np.testing.assert_array_equal(found["user"][0], 13)
    assert "times the mean's factor 1/2, = 40 for `city`" in README
    np.testing.assert_array_equal(found["city"][0], 40)
    changed = set()
    for name, before, after in rows_of("| row | before | after |"):
        table, row = name.split()
        changed.add((table, int(row)))
        assert float(before) == UNIT[table] * int(row)
        np.testing.assert_allclose(tables[table][int(row)], float(after), rtol=1e-6)
    for table, rows in tables.items():
        for row, values in enumerate(rows):
            if (table, row) not in changed:
                np.testing.assert_array_equal(values, UNIT[table] * row)


def test_a_key_gets_the_slot_that_it_says():
    """Of a cached table: key 2 comes, key 0 leaves."""
    (before,), (after,) = (
        [
            row[1]
            for row in rows_of("| | key index | slots | row store |")
            if what in row[0]
        ]
        for what in ("before", "resolved")
    )
    index = empty_index(slots=2)
    for key in (0, 1, 2):
        found = resolve(index, jnp.array([[key, 0]], jnp.uint32), jnp.array([True]))
        index = found.index
        if key == 1:
            assert held(index) == before
    assert held(index) == after
    assert found.demand.moves.incoming.tolist() == [[2, 0]]
    assert found.demand.moves.outgoing.tolist() == [[0, 0]]


def held(index: KeyIndex) -> str:
    keys = index.slot_keys[:, 0].tolist()
    return ", ".join(f"{key} → {slot}" for slot, key in enumerate(keys))
