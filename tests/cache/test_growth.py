"""How far dynamic tables grow, and what is said of it."""

import logging

import numpy as np
import pytest

import embark_jax as ej
from embark_jax.cache.growth import TableGrowth
from embark_jax.cache.resolving import Demand
from embark_jax.cache.slots_needed import TooFewSlotsError, check_slots


def plan_of(table: ej.TableSpec) -> ej.Plan:
    tables = [table, ej.TableSpec("item", 10, 4)]
    features = [ej.FeatureSpec("user"), ej.FeatureSpec("item")]
    fleet = ej.fleets.this_machine()
    return ej.plan(tables, features, fleet=fleet, batch=8)


def wanted(table: ej.TableSpec, needed: int, asked: int, new: int) -> dict[str, int]:
    """Slots that a batch makes the table want, where a device needs ``needed``."""
    storage = next(s for s in plan_of(table).storages if s.kind.table)
    demand = Demand(None, np.array([0, needed, 0]), np.array([asked, new, 0, 0]))  # pyright: ignore
    with pytest.raises(TooFewSlotsError) as raised:
        check_slots({storage.name: demand}, {storage.name: storage}, None)  # pyright: ignore
    return raised.value.slots


def test_a_table_grows_by_the_rate_of_new_keys():
    table = ej.TableSpec.dynamic("user", 4, 100, 10**6)
    # A batch with 5 new keys, for 101 of them: 100 such batches bring 500.
    assert wanted(table, 101, 30, 5) == {"user": 601}
    # One of new keys alone wants 8 times as many at most.
    assert wanted(table, 150, 150, 150) == {"user": 1200}
    assert plan_of(table).with_slots({"user": 601}).tables[0].slots == 800
    assert plan_of(table).with_slots({"user": 10**7}).tables[0].slots == 10**6


def test_a_table_with_all_its_slots_wants_no_more():
    assert wanted(ej.TableSpec.dynamic("user", 4, 100, 100), 101, 101, 5) == {}


def test_each_growth_is_logged_with_seconds(caplog):
    growth, plan = TableGrowth(), plan_of(ej.TableSpec.dynamic("user", 4, 100, 1000))
    with caplog.at_level(logging.WARNING):
        growth.begin(plan, plan.with_slots({"user": 800}))
        assert not caplog.messages  # not before the next program is under way
        growth.end(7)
        growth.end(8)
    (message,) = caplog.messages
    start = "dynamic table user grew from 100 to 800 slots after step 7; growing"
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
