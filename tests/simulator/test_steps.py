"""Steps of both systems: amounts by hand, and what must hold of any step."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

from embark_jax import planner
from embark_jax.planner.cost.candidates import uses_of
from embark_jax.planner.cost.rates import Rates
from embark_jax.planner.request.workload import SortedBatch, table_uses
from embark_jax.plans import fleet
from embark_jax.plans.placement import Placement, row_ranges
from embark_jax.plans.products import Product
from embark_jax.plans.wire import Wire
from embark_jax.simulator import (
    chrome_trace,
    mean_step_ms,
    report,
    schedule,
    serial,
    simulate_hot_batches,
    simulate_program,
)
from embark_jax.simulator.step import is_route, step_tasks
from tests.simulator.jobs import (
    FEATURES,
    NETWORK,
    PLACEMENTS,
    TABLES,
    machines,
    workload_on,
)


def of_program(fleet_, placements):
    return step_tasks(planner.price(placements, FEATURES, workload_on(fleet_)))


def test_serial_embedding_tasks_take_as_long_as_the_planner_predicts():
    workload = workload_on(machines(2, 4))
    tasks = of_program(workload.fleet, PLACEMENTS)
    dense = ("dense", "all-reduce", "capacity check")
    device_ms = sum(task.ms for task in tasks if task.phase not in dense)
    predicted = planner.price(PLACEMENTS, FEATURES, workload).prediction()
    # Gradients of the replicated table's 50 rows of 16 values travel with the dense
    # ones, flags of its rows with the capacities: twice around a ring of 8 devices, at
    # 4 ports between nodes.
    device = workload.fleet.device
    ring_bytes = 2 * 4 * (50 * 16 + 50) * np.array([7 / 8, 7 / 8 / 4])
    rates = np.array([device.node_link_bytes_per_s, device.network_bytes_per_s])
    ridden_ms = 1e3 * (ring_bytes / rates).max() / workload.fleet.efficiency.link
    np.testing.assert_allclose(device_ms, predicted.device_ms - ridden_ms, rtol=1e-9)
    # A collective waits for the slowest device, which may be another each time.
    rest = [task for task in tasks if task.phase not in dense]
    step_ms = schedule(serial(rest)).step_ms
    # The planner adds up the longest gradients of each storage and the longest updates
    # of all; no collective parts those of rb_16 from the gradients of ub_32_split.
    ms = {task.name: np.broadcast_to(task.ms, 8) for task in rest}
    summed, updated = (
        [ms[f"{storage} {stage}"] for storage in ("rb_16", "ub_32_split")]
        for stage in ("gradients", "update")
    )
    apart_ms = summed[0].max() + summed[1].max() + (updated[0] + updated[1]).max()
    own_ms = (summed[0] + updated[0] + summed[1]).max() + updated[1].max()
    expected_ms = predicted.step_ms - ridden_ms - apart_ms + own_ms
    np.testing.assert_allclose(step_ms, expected_ms, rtol=1e-9)


def test_the_program_overlaps_collectives_but_not_kernels():
    tasks = of_program(machines(2, 4), PLACEMENTS)
    overlapped, one_by_one = schedule(tasks), schedule(serial(tasks))
    assert overlapped.step_ms < one_by_one.step_ms
    for device in range(8):
        kernels = [
            (span.start_ms[device], span.end_ms[device])
            for span in overlapped.spans
            if "memory" in span.task.resources
        ]
        kernels.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(kernels))


def changed(**changes):
    return dataclasses.replace(workload_on(machines(2, 4)), **changes)


def spans_of(workload, placements=PLACEMENTS):
    found = simulate_program(placements, FEATURES, workload).timeline
    return {span.task.name: span for span in found.spans}, found


def test_a_hierarchical_exchange_takes_one_way_after_the_other():
    placements = [
        dataclasses.replace(each, exchange="hierarchical") if each.devices else each
        for each in PLACEMENTS
    ]
    spans, _ = spans_of(changed(), placements)
    near, far = "travel inside nodes", "travel along rails"
    for exchange, first, second in (
        ("rb_16_hierarchical row exchange", near, far),
        ("rb_16_hierarchical gradient exchange", far, near),
        ("ub_32_split_hierarchical gradient exchange", near, far),
    ):
        one, two = spans[f"{exchange}: {first}"], spans[f"{exchange}: {second}"]
        assert (two.start_ms >= one.end_ms).all()
        resources = {first: one.task.resources, second: two.task.resources}
        assert resources == {near: {"node link"}, far: {"network"}}


def test_overlap_keeps_nothing_waiting_for_routes():
    (_, plain), (spans, overlapped) = (
        spans_of(changed(overlap=overlap)) for overlap in (False, True)
    )
    assert overlapped.step_ms < plain.step_ms
    total_ms = [sum(s.task.ms for s in each.spans) for each in (plain, overlapped)]
    np.testing.assert_allclose(*total_ms)  # all that is to do is done
    routing = {name for name in spans if "sort of" in name or "id exchange" in name}
    routing.add("capacity check")
    for span in overlapped.spans:
        assert span.task.name in routing or not routing.intersection(span.task.after)


def test_row_stores_work_over_the_host_link_beside_a_step_that_looks_ahead():
    slow = machines(1, 8, host_bytes_per_s=1e8)
    big = dataclasses.replace(TABLES[0], tier="host", slots=100_000)
    placements = [dataclasses.replace(PLACEMENTS[0], table=big), *PLACEMENTS[1:]]
    steps_ms = []
    for overlap in (False, True):
        workload = dataclasses.replace(workload_on(slow), overlap=overlap)
        timeline = simulate_program(placements, FEATURES, workload).timeline
        (store,) = (s for s in timeline.spans if s.task.name == "rb_16_host row store")
        assert store.task.resources == {"host link"}
        store_ms = float((store.end_ms - store.start_ms).max())
        # In and out, of those devices that have a shard.
        use = table_uses([big], FEATURES[:1], workload)[0]
        rows = use.missed_rows(4096)
        expected_ms = 1e3 * 2 * rows / 3 * 4 * 17 / (1e8 * slow.efficiency.link)
        assert store_ms == pytest.approx(expected_ms, rel=1e-3)
        steps_ms.append(timeline.step_ms)
        if overlap:
            assert store.start_ms.max() == 0
            assert timeline.step_ms == pytest.approx(store_ms)
    assert steps_ms[0] > steps_ms[1] + 0.1


def test_all_hot_batches_exchange_nothing_and_mixed_ones_have_all_cold_ids():
    hot = [
        dataclasses.replace(placement, hot_rows=1000)
        if placement.cluster != "dp"
        else placement
        for placement in PLACEMENTS
    ]
    workload = dataclasses.replace(workload_on(machines(1, 8)), overlap=True)
    own = simulate_program(hot, FEATURES, workload)
    all_hot, mixed = simulate_hot_batches(hot, FEATURES, workload, 0.25)
    names = {span.task.name for span in all_hot.timeline.spans}
    assert not [name for name in names if name.startswith(("rb_", "ub_"))]
    assert [span for span in mixed.timeline.spans if span.task.name.startswith("rb_")]
    assert all_hot.timeline.step_ms < own.timeline.step_ms < mixed.timeline.step_ms
    # Once in a window the routes of one batch pass beside nothing.
    alone = [
        sum(
            s.end_ms.max() - s.start_ms.min()
            for s in each.timeline.spans
            if is_route(s.task)
        )
        for each in (all_hot, mixed)
    ]
    assert 0 < all_hot.routes_ms <= alone[0] * (1 + 1e-9)
    assert all_hot.routes_ms < mixed.routes_ms <= alone[1]
    steps_ms = (all_hot.timeline.step_ms + 3 * mixed.timeline.step_ms) / 4
    mean_ms = mean_step_ms(all_hot, mixed, 0.25, 10)
    routes_ms = all_hot.routes_ms + mixed.routes_ms
    assert mean_ms == pytest.approx(steps_ms + routes_ms / 20)
    assert report([own, all_hot, mixed]).row_count > 6  # some lack phases of others
    use = table_uses(TABLES[:1], FEATURES[:1], workload)[0]
    cold_share = 1 - use.skew.share(use.rows, 0, 1000)
    of_mixed = dataclasses.replace(workload, sorted_batch=SortedBatch(0.25, False))
    ranges = row_ranges(hot[:1])
    of_hot, of_cold = uses_of(ranges, FEATURES[:1], of_mixed)
    assert of_cold.ids == pytest.approx(20 * cold_share / 0.75)
    assert of_hot.ids + of_cold.ids == pytest.approx(20)
    with pytest.raises(ValueError, match=r"1 of 3 tables have no hot rows, such as"):
        simulate_hot_batches([PLACEMENTS[0], *hot[1:]], FEATURES, workload, 0.25)
    with pytest.raises(ValueError, match=r"of a share from 0"):
        simulate_hot_batches(hot, FEATURES, workload, 1.0)


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 1), (2, 4)])
def test_dense_layers_are_updated_by_passes_over_all_arrays(nodes, gpus):
    """As compiled steps have them: gradient, parameter and state are read for the check
    and for the update, which writes the latter two; of several devices gradients also
    go into one array and out of it."""
    fleet_ = machines(nodes, gpus)
    efficiency = dataclasses.replace(fleet_.efficiency, kernel_us=0.0)
    fleet_ = dataclasses.replace(fleet_, efficiency=efficiency)
    dense = NETWORK.load(1)
    owned = [
        dataclasses.replace(p, devices=(0,) * len(p.devices))
        if nodes * gpus == 1
        else p
        for p in PLACEMENTS
    ]
    spans, _ = spans_of(changed(fleet=fleet_, dense=dense), owned)
    passes = 3 + 3 + 2 + 4 * (nodes * gpus > 1)
    rate = fleet_.device.memory_bytes_per_s * efficiency.memory
    expected_ms = 1e3 * passes * 4 * NETWORK.parameters / rate
    np.testing.assert_allclose(spans["update dense"].task.ms, expected_ms)


@pytest.mark.parametrize("parallelism", ["replicated", "zero1"])
def test_dense_layers_have_small_kernels(parallelism):
    fleet_, ms = machines(2, 4), []
    for kernel_us in (1.0, 2.0):
        efficiency = dataclasses.replace(fleet_.efficiency, kernel_us=kernel_us)
        slow = dataclasses.replace(fleet_, efficiency=efficiency)
        spans, _ = spans_of(changed(fleet=slow, dense=NETWORK.load(1, parallelism)))
        span = spans["update dense" + ": share" * (parallelism == "zero1")]
        ms.append((span.end_ms - span.start_ms).max())
    products = 2 + 4 + 2
    assert ms[1] - ms[0] == pytest.approx(11 * products * 0.001)


def test_zero1_sends_as_much_and_updates_a_part():
    machines_ = machines(2, 4)
    no_latency = {"launch_us": 0, "node_hop_us": 0, "network_hop_us": 0}
    efficiency = dataclasses.replace(machines_.efficiency, **no_latency)
    fleet_ = dataclasses.replace(machines_, efficiency=efficiency)
    plain, _ = spans_of(changed(fleet=fleet_))
    half, _ = spans_of(changed(fleet=fleet_, wire=Wire(sums="bfloat16")))
    np.testing.assert_allclose(
        2 * half["all-reduce"].task.ms, plain["all-reduce"].task.ms
    )
    spans, _ = spans_of(changed(fleet=fleet_, dense=NETWORK.load(1, "zero1")))
    sent_ms = spans["reduce-scatter"].task.ms + spans["all-gather"].task.ms
    # The plain sum also carries the gradients of 50 replicated rows of 16 values.
    rows_bytes = 2 * (4 * 50 * 16) * 7 / 8 / 4
    rate = fleet_.device.network_bytes_per_s * fleet_.efficiency.link
    carried_ms = sent_ms + 1e3 * rows_bytes / rate
    np.testing.assert_allclose(carried_ms, plain["all-reduce"].task.ms)
    assert (spans["update dense: share"].task.ms < plain["update dense"].task.ms).all()


def test_sums_are_as_many_as_xla_combines_and_leave_when_they_are_full():
    one, _ = spans_of(changed())
    # 300 MiB of the top MLP's gradients: more than twice the 128 MiB of a sum.
    wide = dataclasses.replace(NETWORK, top=(Product(96, 300 * 2**18 // 96),))
    several, _ = spans_of(changed(dense=wide.load(1)))
    counts = [
        sum(span.task.phase == "all-reduce" for span in spans.values())
        for spans in (one, several)
    ]
    assert counts == [1, 3]
    first = several["all-reduce: part 1"]
    assert (first.start_ms >= several["top backward"].end_ms).all()
    assert (first.start_ms < several["bottom backward"].end_ms).all()
    assert (several["all-reduce"].start_ms >= several["bottom backward"].end_ms).all()


def test_a_sum_takes_the_fastest_way():
    """By hand for 16 nodes of 8 with 8 ports of 40e9 B/s and 400e9 B/s inside."""
    tree = fleet.Way("tree", 6.8, 0.6, 5.0, network_bytes_per_s=20.4e9)
    ring = fleet.Way("ring", 8.4, 3.4, 14.0)
    node = fleet.Way("node", 0, 25, 20, node_share=1.5)
    network = fleet.Way("network", 0, 25, 18)
    machines_ = fleet.dgx_h100(16)
    device = dataclasses.replace(
        machines_.device, node_link_bytes_per_s=400e9, network_bytes_per_s=40e9
    )
    efficiency = fleet.Efficiency(1, 1, 1, 9, 0, 0, ways=(tree, ring, node, network))
    machines_ = dataclasses.replace(machines_, device=device, efficiency=efficiency)

    def sum_ms(sharp: fleet.Adding, sum_bytes: float) -> float:
        return Rates(dataclasses.replace(machines_, sharp=sharp)).all_reduce_ms(
            sum_bytes
        )

    # 7 hops inside and 4 between nodes, up and down; each byte goes up and down.
    tree_us = 6.8 + 2 * (7 * 0.6 + 4 * 5)
    assert sum_ms("none", 1020) == pytest.approx(tree_us / 1e3 + 1e-4)
    # 254 hops, 30 of them between nodes, at what 8 ports send.
    ring_ms = (8.4 + 224 * 3.4 + 30 * 14) / 1e3 + 1e3 * 2 * 1e9 * 127 / 128 / 320e9
    assert sum_ms("none", 1e9) == pytest.approx(ring_ms)
    node_ms = (25 + 8 * 20) / 1e3 + 1e3 * 2 * 1e9 * 127 / 128 / 320e9
    assert sum_ms("node", 1e9) == pytest.approx(node_ms)
    assert sum_ms("network", 1e9) == pytest.approx(node_ms - 0.142)
    assert sum_ms("node", 1020) == sum_ms("none", 1020)
    assert sum_ms("none", 0) == 0
    # Around a ring once: 15 hops between nodes, 112 inside.
    gather_ms = (8.4 + 15 * 14 + 112 * 3.4) / 1e3 + 1e3 * 64e6 * 127 / 128 / 320e9
    assert Rates(machines_).all_gather_ms(64e6) == pytest.approx(gather_ms)
    one = dataclasses.replace(machines_, nodes=1, sharp="node")
    assert Rates(one).all_reduce_ms(1e9) == pytest.approx(
        25e-3 + 1e3 * 2 * 1e9 * 7 / 8 / 600e9
    )


def test_row_gradients_leave_beside_the_dense_update_and_rows_are_written_last():
    spans, _ = spans_of(changed())
    leave_ms = [
        spans[f"{storage} gradient exchange: travel"].start_ms.min()
        for storage in ("rb_16", "ub_32_split")
    ]
    assert min(leave_ms) >= spans["all-reduce"].end_ms.max()
    assert min(leave_ms) < spans["update dense"].end_ms.min()
    for storage in ("dp_16", "rb_16", "ub_32_split"):
        for decides in ("update dense", "capacity check"):
            written_ms = spans[f"{storage} update"].start_ms
            assert (written_ms >= spans[decides].end_ms).all()


def test_one_device_exposes_nothing():
    placements = [Placement(table, "dp") for table in TABLES]
    ours = simulate_program(placements, FEATURES, workload_on(machines(1, 1)))
    assert abs(ours.exposed_share) + abs(ours.waiting_share) < 1e-9


def test_a_trace_shows_every_task_once_on_each_resource():
    _, timeline = spans_of(workload_on(machines(2, 4)))
    events = json.loads(chrome_trace(timeline))["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    assert {names[3, tid] for tid in range(1, 4)} == {
        "tensor cores",
        "node link",
        "network",
    }
    streams: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events:
        if event["ph"] == "X":
            start, length = round(1e3 * event["ts"]), round(1e3 * event["dur"])
            assert start >= 0
            assert length > 0
            stream = streams.setdefault((event["pid"], event["tid"]), [])
            stream.append((start, start + length))
    assert len(streams) == 8 * 4
    for spans in streams.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    busy_ns = sum(end - start for spans in streams.values() for start, end in spans)
    expected_ms = sum(
        (span.end_ms - span.start_ms).sum() * len(span.task.resources)
        for span in timeline.spans
    )
    assert busy_ns / 1e6 == pytest.approx(expected_ms, rel=1e-4)
