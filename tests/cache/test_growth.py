"""How far dynamic tables grow, and what is said of it."""

import logging

import pytest

import embark_jax as ej
from embark_jax.cache.growth import Growth, TableGrowth


def plan_of(table: ej.TableSpec) -> ej.Plan:
    tables = [table, ej.TableSpec("item", 10, 4)]
    features = [ej.FeatureSpec("user"), ej.FeatureSpec("item")]
    fleet = ej.fleets.this_machine()
    return ej.plan(tables, features, fleet=fleet, batch=8)


def growths(table: ej.TableSpec, keys: list[int]) -> list[tuple[int, int]]:
    """(Batch, slots) of each growth, where batch i makes it ``keys[i]`` keys."""
    reported: list[Growth] = []
    growth, plan = TableGrowth(reported.append), plan_of(table)
    for step, count in enumerate(keys):
        growth.expect({"user": count})
        plan = growth.larger(plan, {"user": count})
        growth.end(step)
        assert plan.tables[0].rows >= count
    return [(each.step, each.after) for each in reported]


def test_a_table_grows_by_the_rate_of_new_keys():
    table = ej.TableSpec.dynamic("user", 4, 100, 10**6)
    # 50 new keys a batch: the third has 150, and 100 more bring 5,000; but 8 times 150
    # is less, 1,200. 1,601 keys want 6,601 by their rate: 100 · 2^7 are enough.
    steady = list(range(50, 5001, 50))
    assert growths(table, steady) == [(2, 1600), (32, 12800)]
    # Doubling alone would have compiled at 100, 200, 400, …: 6 times.
    # Where few keys are new, it still doubles.
    assert growths(table, [99, *[100] * 20, 101]) == [(21, 200)]


def test_no_more_than_max_slots_are_taken_in_advance():
    table = ej.TableSpec.dynamic("user", 4, 100, 300)
    # 90 a batch would want 720; its most slots are 300, within 400 rows. Beyond them
    # the room of rows that were evicted doubles.
    found = growths(table, [90, 180, 270, 360, 401])
    assert found == [(1, 300), (4, 300)]


def test_each_growth_is_logged_with_rows_and_seconds(caplog):
    growth = TableGrowth()
    plan = plan_of(ej.TableSpec.dynamic("user", 4, 100, 1000))
    growth.expect({"user": 101})
    with caplog.at_level(logging.WARNING):
        growth.larger(plan, {"user": 101})
        assert not caplog.messages  # not before the next program is under way
        growth.end(7)
        growth.end(8)
    (message,) = caplog.messages
    start = "dynamic table user grew from 100 to 1,000 slots after step 7, for 101 keys"
    assert message.startswith(start)
    assert message.endswith(" s")


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
