"""Slots of cached tables: what the planner says of them, and what it chooses."""

import dataclasses
import math

import jax
import numpy as np
import pytest

import embark_jax as ej
from embark_jax.cache.key_index import empty_index
from embark_jax.planner import plan_for
from embark_jax.planner.cost.memory import INDEX_BYTES, MEMORY_SHARE
from embark_jax.plans.placement import Placement
from tests.planner import published
from tests.planner.published import t7_of, table_list
from tests.planner.toy import RINGS
from tests.thorough import thorough

DEVICE = ej.fleets.DeviceSpec("toy", 1e8, 1e9, 1e9, 2e9, 1e9, host_bytes_per_s=1e9)
TOY = ej.fleets.Fleet(DEVICE, nodes=1, gpus_per_node=4, efficiency=RINGS)
BATCH = 64


def planned(*tables, zipf=1.1, hotness=(1, 1), **options) -> ej.Plan:
    features = [ej.FeatureSpec(t.name, hotness=h) for t, h in zip(tables, hotness)]  # noqa: B905
    return ej.plan(tables, features, TOY, BATCH, zipf_exponent=zipf, **options)


def slots_of(found: ej.Plan) -> dict[str, int]:
    return {table.name: table.slots or 0 for table in found.tables}


def test_an_index_takes_what_memory_counts():
    index = jax.tree.leaves(jax.eval_shape(lambda: empty_index(4000)))
    taken = sum(math.prod(each.shape) * each.dtype.itemsize for each in index)
    assert taken == pytest.approx(4000 * INDEX_BYTES, abs=16)


def test_slots_take_memory_and_rows_do_not():
    table = ej.TableSpec("t", 10**9, 16, tier="disk", slots=40_000)
    found = planned(table, forced={"t": ej.ForcedPlacement("ub", row_shards=4)})
    (storage,) = found.storages
    assert storage.name == "ub_16_disk"
    assert (storage.slots_per_device, storage.rows_per_device) == (10_000, 250_000_000)
    assert found.prediction is not None
    slot_bytes = 4 * 17 + INDEX_BYTES
    taken = found.prediction.device_bytes[0] - 10_000 * slot_bytes
    assert 0 < taken < 64 * 4 * 100 * 4, "routes and rows of a small batch"
    again = ej.Plan.from_json(found.to_json())
    assert again == found


def test_what_is_left_of_memory_goes_to_the_rows_most_asked_for():
    small = ej.TableSpec("small", 500_000, 16)
    hot, cold = (
        ej.TableSpec(name, 20_000_000, 16, tier="host", evict="lfu")
        for name in ("hot", "cold")
    )
    found = planned(hot, cold, small, hotness=(4, 1, 1))
    slots = slots_of(found)
    assert slots["hot"] > 2 * slots["cold"] > 2 * BATCH
    assert found.prediction is not None
    used = max(found.prediction.device_bytes) / DEVICE.memory_bytes
    assert 0.8 * MEMORY_SHARE < used <= MEMORY_SHARE
    assert "slots, rows in host" in str(found)
    # By a draw: unique ids of a batch beyond those that the slots hold.
    at_once = np.random.default_rng(0).random((64, BATCH))
    power = 1 - 1.1
    ids = (1 + at_once * (20_000_000**power - 1)) ** (1 / power)
    missed = np.mean([len({*np.floor(d)} - {*range(slots["cold"] + 1)}) for d in ids])
    unique = np.mean([len({*np.floor(d)}) for d in ids])
    hit_rate = found.prediction.breakdown.hit_rates["cold"]
    assert hit_rate == pytest.approx(1 - missed / unique, abs=0.02)
    found.check_serves((hot, cold, small), found.features)
    fewer = dataclasses.replace(hot, slots=1000)
    with pytest.raises(ValueError, match="another model"):
        found.check_serves((fewer, cold, small), found.features)


def test_a_table_that_fits_gets_a_slot_for_each_row():
    found = planned(ej.TableSpec("t", 1000, 16, tier="host"), zipf=0.0)
    assert slots_of(found) == {"t": 1000}
    assert "slots" in str(found)
    assert "rows in host" not in str(found)


def test_what_does_not_fit_is_told_how_it_would():
    table = ej.TableSpec("huge", 10**9, 16)
    with pytest.raises(ValueError, match=r"embedding.tables.huge.tier: auto \("):
        planned(table)
    assert slots_of(planned(dataclasses.replace(table, tier="host")))["huge"] > 10**6


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tier": "tape"}, "tier is 'tape', must be one of device, host, disk, auto"),
        ({"slots": 9}, "slots is 9, but tier is 'device', where every row has its"),
        ({"tier": "host", "slots": 11}, "slots is 11, must be at most its 10 rows"),
        ({"tier": "host", "slots": 0}, "slots is 0, must be a whole number >= 1"),
    ],
)
def test_what_is_wrong_is_said(change, said):
    with pytest.raises(ValueError, match=f"table 't': {said}"):
        ej.TableSpec("t", 10, 4, **change)


def test_a_cached_table_is_not_replicated_nor_laid_out_without_slots():
    table = ej.TableSpec("t", 10, 4, tier="host", slots=5)
    with pytest.raises(ValueError, match="cluster dp is replicated, takes no tier"):
        planned(table, forced={"t": ej.ForcedPlacement("dp")})
    placed = Placement(dataclasses.replace(table, slots=None), "ub", 1, 1, (0,))
    with pytest.raises(ValueError, match=r"slots is None, must be a number; plan\(\)"):
        ej.Plan((ej.FeatureSpec("t"),), (placed,), 1, 1, 4, {"ub_4_host": 4})


@pytest.mark.parametrize("gpus", thorough([1, 2], [1]))
def test_a_device_may_have_more_cached_rows_than_32_bits_number(gpus):
    found = t7_of(gpus, 2e12)
    assert max(s.rows_per_device for s in found.storages) > 2**31
    assert max(s.slots_per_device for s in found.storages) < 2**31


def test_rows_without_room_are_refused():
    message = r"7 cached tables .* take 1.78 TB, .* for 1 TB and devices for"
    with pytest.raises(ValueError, match=message):
        t7_of(4, 1e12)


def two_tables(link_bytes_per_s, slots):
    """Hot rows of two tables in host memory behind a link, and all rows on devices."""
    machines = ej.fleets.dgx_h100(1, 4)
    device = dataclasses.replace(
        machines.device, host_bytes_per_s=link_bytes_per_s, memory_bytes=3e9
    )
    tables = [
        ej.TableSpec(name, 20_000_000, 64, tier="host", slots=slots) for name in "ab"
    ]
    features = [ej.FeatureSpec("a"), ej.FeatureSpec("b", hotness=4)]
    machines = dataclasses.replace(machines, device=device)
    placements = ej.plan(
        tables, features, machines, 65_536, zipf_exponent=1.1
    ).placements
    hot_rows = sum(placement.hot_rows for placement in placements)
    return hot_rows, hot_rows + sum(p.table.slots or 0 for p in placements)


def test_a_slower_host_link_raises_hot_rows():
    """Where slots are few. Where they are free, they take what memory there is: one
    costs a row's memory on one device, a hot row on each."""
    of_few = [two_tables(link, 200_000)[0] for link in (450e9, 1e9)]
    assert of_few[0] < of_few[1]
    assert two_tables(1e9, None)[1] > 2 * two_tables(1e9, 200_000)[1]


@pytest.mark.slow
def test_with_tier_auto_rows_leave_devices_only_where_memory_is_short():
    listed = table_list("DLRM-DCNv2")
    tables, features = listed.specs()
    auto = [dataclasses.replace(table, tier="auto") for table in tables]
    workload = published.workload(listed, ej.fleets.dgx_h100(1), zipf_exponent=1.1)

    def step_ms(tables, memory_gb=None, host_gb=2000.0):
        device = dataclasses.replace(
            workload.fleet.device, host_memory_bytes=1e9 * host_gb / 8
        )
        machines = dataclasses.replace(workload.fleet, device=device)
        less = dataclasses.replace(workload, fleet=machines, memory_gb=memory_gb)
        plan = plan_for(less, tables, features)
        assert plan.prediction is not None
        cached_bytes = sum(
            4 * table.rows * (table.dim + 1) for table in plan.tables if table.cached
        )
        assert cached_bytes <= 1e9 * host_gb
        return plan.prediction.step_ms, cached_bytes

    on_devices_ms, _ = step_ms(tables)
    enough_ms, cached_bytes = step_ms(auto)
    assert cached_bytes == 0
    assert enough_ms <= on_devices_ms * (1 + 1e-9)
    with pytest.raises(ValueError, match="memory is short"):
        step_ms(tables, memory_gb=10)
    short_ms, cached_bytes = step_ms(auto, memory_gb=10)
    assert short_ms > enough_ms
    assert cached_bytes > 2e10
    # Host memory is a limit, too.
    with pytest.raises(ValueError, match="memory and disks have room for 2 GB"):
        step_ms(auto, memory_gb=10, host_gb=2)
