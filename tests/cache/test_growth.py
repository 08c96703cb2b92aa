"""How far dynamic tables grow, and what is said of it."""

import tracemalloc

import numpy as np
import pytest

import embark_jax as ej
from embark_jax.cache.key_index import Counts
from embark_jax.cache.row_store import KeyedRows, make_store
from embark_jax.config.table_lists import read_table_list
from embark_jax.train.cached_rows import TooFewSlotsError, check_slots


def plan_of(table: ej.TableSpec) -> ej.Plan:
    tables = [table, ej.TableSpec("item", 10, 4)]
    features = [ej.FeatureSpec("user"), ej.FeatureSpec("item")]
    fleet = ej.fleets.this_machine()
    return ej.plan(tables, features, fleet=fleet, batch=8)


def wanted(table: ej.TableSpec, needed: int, asked: int, new: int) -> dict[str, int]:
    """Slots that a batch makes the table want, where a device needs ``needed``."""
    storage = next(s for s in plan_of(table).storages if s.kind.table)
    counts = Counts(0, needed, 0, asked, new, 0)
    with pytest.raises(TooFewSlotsError) as raised:
        check_slots({storage.name: counts}, {storage.name: storage})
    return dict(raised.value.slots)


def test_a_table_grows_by_the_rate_of_new_keys():
    table = ej.TableSpec.dynamic("user", 4, 100, 10**6)
    # A batch with 5 new keys, for 101 of them: 100 such batches bring 500.
    assert wanted(table, 101, 30, 5) == {"user": 601}
    # One of new keys alone wants 8 times as many at most.
    assert wanted(table, 150, 150, 150) == {"user": 1200}
    assert plan_of(table).with_slots({"user": 601}).tables[0].slots == 800
    assert plan_of(table).with_slots({"user": 10**7}).tables[0].slots == 10**6


def test_tables_that_soon_must_grow_do_so_with_another():
    tables = [ej.TableSpec.dynamic(name, 4, 100, 10**6) for name in ("user", "item")]
    features = [ej.FeatureSpec("user"), ej.FeatureSpec("item")]
    plan = ej.plan(tables, features, fleet=ej.fleets.this_machine(), batch=8)
    storages = {storage.name: storage for storage in plan.storages}

    def grown(user: int, item: int, new: int) -> list[int | None]:
        """Slots after a batch that makes tables need so many, with new items."""
        needed = {"user": user, "item": item}
        counts = {
            name: Counts(0, needed[storage.kind.table], 0, 9, new, 0)
            for name, storage in storages.items()
        }
        with pytest.raises(TooFewSlotsError, match="tables user must grow") as raised:
            check_slots(counts, storages)
        return [table.slots for table in plan.with_slots(raised.value.slots).tables]

    assert grown(101, 40, 1) == [400, 200]  # 201 and 140 in 100 batches
    assert grown(101, 40, 0) == [200, 100]


def test_a_table_with_all_its_slots_wants_no_more():
    assert wanted(ej.TableSpec.dynamic("user", 4, 100, 100), 101, 101, 5) == {}


@pytest.mark.parametrize(
    ("table", "slots", "tier"),
    [
        (ej.TableSpec("user", 50, 4, max_slots=80), 50, "host"),
        (ej.TableSpec("user", 50, 4, max_slots=30), 30, "host"),
        (ej.TableSpec("user", 50, 4, max_slots=80, discard=True), 50, "host"),
        (ej.TableSpec("user", 50, 4, max_slots=80, tier="disk", slots=20), 20, "disk"),
        (ej.TableSpec.dynamic("user", 4, None, 80), 80, "host"),
        (ej.TableSpec.dynamic("user", 4, None, 10**6), 16_384, "host"),
    ],
)
def test_a_dynamic_table_needs_only_max_slots(table, slots, tier):
    assert (table.is_dynamic, table.slots, table.tier) == (True, slots, tier)
    assert ej.Plan.from_json(plan_of(table).to_json()).tables[0] == table


def planned(table: ej.TableSpec, batch: int = 1024) -> ej.Plan:
    fleet, features = ej.fleets.load("dgx-h100"), [ej.FeatureSpec("user")]
    return ej.plan([table], features, fleet, batch, optimizer="sgd")


def test_memory_is_planned_for_the_keys_of_the_end():
    def bytes_of(**options):
        plan = planned(ej.TableSpec.dynamic("user", 16, 1000, 64_000, **options))
        assert plan.tables[0].slots == 1000
        prediction = plan.prediction
        assert prediction is not None
        assert ej.Plan.from_json(plan.to_json()) == plan
        return prediction.device_bytes[0], prediction.stored_bytes

    row_and_key = 4 * 16 + 21
    for keys, slots in ((10_000, 16_000), (10**6, 64_000)):
        device, stored = bytes_of(expected_keys=keys)
        assert stored == {"host": pytest.approx(max(keys, slots) * row_and_key)}
        _, of_slots = bytes_of(expected_keys=keys, evicted="discard")
        assert of_slots == {"host": pytest.approx(slots * row_and_key)}
        _, on_disk = bytes_of(expected_keys=keys, evicted="disk")
        assert on_disk == {"disk": stored["host"]}
    grown, stored = bytes_of()
    assert grown == pytest.approx(device, rel=0.1)
    assert stored == {"host": pytest.approx(64_000 * row_and_key)}


def test_a_list_says_how_many_keys_a_table_will_have():
    listed = read_table_list(
        "[{name: user, dim: 16, expected_keys: [1000, 90_000], max_slots: 40_000, "
        "evicted: disk}, {name: item, dim: 8, expected_keys: 500}]"
    )
    assert listed.specs()[0] == [
        ej.TableSpec.dynamic(
            "user", 16, 1000, 40_000, evicted="disk", expected_keys=90_000
        ),
        ej.TableSpec.dynamic("item", 8, 500, 500, expected_keys=500),
    ]
    for entry, message in (
        ("dim: 8", "tables.0: has no rows; a dynamic table has expected_keys instead"),
        ("dim: 8, expected_keys: [1, 2, 3]", "expected_keys: .*must have at most 2"),
    ):
        with pytest.raises(ValueError, match=message):
            read_table_list(f"[{{{entry}}}]")


def test_a_store_takes_the_host_memory_that_was_planned():
    """As many keys as fill its arrays, which double."""
    keys, at_once = 2**17, 2**13
    table = ej.TableSpec.dynamic("user", 16, 1000, 1000, expected_keys=keys)
    prediction = planned(table).prediction
    assert prediction is not None
    tracemalloc.start()
    try:
        store = KeyedRows(lambda n: make_store("host", n, 16), 0, any_keys=True)
        for first in range(0, keys, at_once):
            rows = np.ones((at_once, 16), np.float32)
            store.write(np.arange(first, first + at_once), rows)
        del rows
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken == pytest.approx(prediction.stored_bytes["host"], rel=0.1)
