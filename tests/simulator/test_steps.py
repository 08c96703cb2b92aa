"""Steps of both systems: amounts by hand, and what must hold of any step."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

from embark_jax import planner
from embark_jax.planner import Workload
from embark_jax.planner.cost.shapes import shapes_of
from embark_jax.planner.request.dense import DenseLoad
from embark_jax.plans import fleet
from embark_jax.plans.storage import Placement, row_ranges
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.simulator import (
    Job,
    chrome_trace,
    dlrm_dcnv2,
    schedule,
    serial,
    simulate_ablation,
    simulate_embark,
    simulate_program,
)
from embark_jax.simulator.embark_loads import count
from embark_jax.simulator.embark_plans import SystemModel, over_gpus, table_row_wise
from embark_jax.simulator.program_step import program_tasks

TABLES = [
    TableSpec("big", rows=1_000_000, dim=16),
    TableSpec("wide", rows=50_000, dim=64),
    TableSpec("tiny", rows=50, dim=16),
]
FEATURES = [
    FeatureSpec("big", hotness=20),
    FeatureSpec("wide", hotness=2),
    FeatureSpec("tiny", hotness=3),
]
# One of each cluster; the big one is on three of eight devices.
PLACEMENTS = [
    Placement(TABLES[0], "rb", 3, 1, (0, 1, 5)),
    Placement(TABLES[1], "ub", 2, 2, (2, 3, 4, 6)),
    Placement(TABLES[2], "dp"),
]
NETWORK = dlrm_dcnv2(96, 13, (64, 32), (64, 1), cross_layers=2, cross_rank=16)


def machines(nodes, gpus, **changed):
    real = fleet.dgx_h100()
    device = dataclasses.replace(real.device, **changed)
    return dataclasses.replace(real, device=device, nodes=nodes, gpus_per_node=gpus)


def job(fleet_, batch=4096):
    workload = Workload(fleet_, batch, 1.1, optimizer="rowwise_adagrad")
    return Job(TABLES, FEATURES, workload, NETWORK, "bfloat16", "adagrad")


def of_program(fleet_, placements):
    mine = job(fleet_)
    return program_tasks(
        placements, mine.features, mine.workload, NETWORK, "bfloat16", dense_states=1
    )


def test_serial_embedding_tasks_take_as_long_as_the_planner_predicts():
    workload = job(machines(2, 4)).workload
    tasks = of_program(workload.fleet, PLACEMENTS)
    dense = ("dense", "all-reduce", "capacity check")
    device_ms = sum(task.ms for task in tasks if task.phase not in dense)
    predicted = planner.predict(
        PLACEMENTS, FEATURES, workload, planner.ProgramModel(workload)
    )
    np.testing.assert_allclose(device_ms, predicted.device_ms, rtol=1e-12)
    # A collective waits for the slowest device, which may be another each time.
    rest = [task for task in tasks if task.phase not in dense]
    step_ms = schedule(serial(rest)).step_ms
    assert predicted.step_ms <= step_ms < 1.5 * predicted.step_ms


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


def changed_job(**changes):
    mine = job(machines(2, 4))
    workload = dataclasses.replace(mine.workload, **changes)
    return dataclasses.replace(mine, workload=workload)


def spans_of(job_, placements=PLACEMENTS):
    found = simulate_program(job_, placements).timeline
    return {span.task.name: span for span in found.spans}, found


def test_a_hierarchical_exchange_takes_one_way_after_the_other():
    placements = [
        dataclasses.replace(each, exchange="hierarchical") if each.devices else each
        for each in PLACEMENTS
    ]
    spans, _ = spans_of(changed_job(), placements)
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
        spans_of(changed_job(overlap=overlap)) for overlap in (False, True)
    )
    assert overlapped.step_ms < plain.step_ms
    total_ms = [sum(s.task.ms for s in each.spans) for each in (plain, overlapped)]
    np.testing.assert_allclose(*total_ms)  # all that is to do is done
    routing = {name for name in spans if "sort of" in name or "id exchange" in name}
    routing.add("capacity check")
    for span in overlapped.spans:
        assert span.task.name in routing or not routing.intersection(span.task.after)


def test_zero1_sends_as_much_and_updates_a_part():
    sharded = DenseLoad(NETWORK.parameters, 1, 0.0, "zero1")
    plain, _ = spans_of(changed_job())
    spans, _ = spans_of(changed_job(dense=sharded))
    sent_ms = spans["reduce-scatter"].task.ms + spans["all-gather"].task.ms
    np.testing.assert_allclose(sent_ms, plain["all-reduce"].task.ms)
    assert (spans["update dense"].task.ms < plain["update dense"].task.ms).all()
    tensor = dataclasses.replace(sharded, parallelism="tensor")
    with pytest.raises(ValueError, match="simulate 'replicated' or 'zero1'"):
        spans_of(changed_job(dense=tensor))


def test_rows_are_written_after_all_that_decides_whether_they_may():
    spans = {
        s.task.name: s for s in schedule(of_program(machines(2, 4), PLACEMENTS)).spans
    }
    for storage in ("dp_16", "rb_16", "ub_32_split"):
        written = spans[f"{storage} update"].start_ms
        assert (written >= spans["update dense"].end_ms).all()
        assert (written >= spans["capacity check"].end_ms).all()


@pytest.mark.parametrize(
    "rate",
    [
        *("memory_bytes_per_s", "flops_per_s"),
        *("node_link_bytes_per_s", "network_bytes_per_s"),
    ],
)
def test_a_faster_machine_is_never_slower_where_nothing_overlaps(rate):
    real = getattr(fleet.dgx_h100().device, rate)

    def step_ms(factor):
        fleet_ = machines(2, 4, **{rate: factor * real})
        embarks = simulate_embark("", job(fleet_), PLACEMENTS).timeline.spans
        for tasks in (of_program(fleet_, PLACEMENTS), [span.task for span in embarks]):
            yield schedule(serial(tasks)).step_ms

    # As slow as it is at first, each rate counts.
    first, second, third = (np.array([*step_ms(factor)]) for factor in (1e-3, 2e-3, 1))
    assert (second < first).all()
    assert (third < second).all()


def test_one_device_exposes_nothing():
    alone = job(machines(1, 1))
    placements = [Placement(table, "dp") for table in TABLES]
    ours = simulate_program(alone, placements)
    assert ours.exposed_share == ours.waiting_share == 0
    owned = [Placement(table, "rb", devices=(0,)) for table in TABLES]
    embarks = simulate_embark("", alone, owned, serial)
    assert embarks.exposed_share == embarks.waiting_share == 0


def test_a_trace_shows_every_task_once_on_each_resource():
    timeline = simulate_embark("", job(machines(2, 4)), PLACEMENTS).timeline
    events = json.loads(chrome_trace(timeline))["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    assert {names[3, tid] for tid in range(1, 4)} == {
        *("tensor cores", "node link", "network")
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


def test_loads_of_embarks_system():
    uniform = Workload(machines(2, 4), batch_size=800)
    placements = [
        Placement(TableSpec("rb", 1000, 8), "rb", 2, 2, (0, 1, 4, 4)),
        Placement(TableSpec("ub", 10, 4), "ub", 2, 1, (2, 7)),
        Placement(TableSpec("dp", 6, 2), "dp"),
    ]
    features = [
        FeatureSpec("rb", hotness=3),
        FeatureSpec("ub", hotness=1000),
        FeatureSpec("dp", hotness=5),
    ]
    loads = count(placements, features, uniform)
    # Of 2400 ids of "rb" half fall on each row shard, for both of its column shards.
    np.testing.assert_allclose(loads.ids, [1200, 1200, 0, 0, 2400, 0, 0, 0])
    np.testing.assert_allclose(loads.id_values, 4 * loads.ids)
    assert loads.sums.tolist() == [3200, 3200, 0, 0, 6400, 0, 0, 0]
    # A bag of three has none of a shard's ids once in eight.
    np.testing.assert_allclose(loads.filled, 7 / 8 * loads.sums)
    # Both column shards of 4 leave both nodes.
    assert loads.node_sums.tolist() == [8, 8]
    # 100 samples of 1000 ids hit all ten rows; eight devices ask for five of each.
    assert loads.repeated_ids == 100_000
    assert loads.unique_values == pytest.approx(40)
    np.testing.assert_allclose(loads.received_ids, [0, 0, 40, 0, 0, 0, 0, 40])
    np.testing.assert_allclose(loads.touched[[2, 7]], 20)
    assert (loads.local_ids, loads.local_values) == (500, 1000)
    assert loads.replicated_values == 12
    assert loads.outputs == 12


def test_what_embarks_system_sends_between_nodes():
    two_nodes = job(machines(2, 4))
    table, feature = TABLES[:1], FEATURES[:1]
    one_table = dataclasses.replace(two_nodes, tables=table, features=feature)
    placements = table_row_wise(table, two_nodes.workload)
    assert placements[0].devices == (0, 1, 2, 3)
    timeline = simulate_embark("", one_table, placements, serial).timeline
    task = {span.task.name: span.task for span in timeline.spans}["exchange sums"]
    # Each of 4 GPUs adds up the sums of 1024 samples, 16 values of 2 bytes; half of
    # them are for the other node, in one message. The other node sends nothing.
    seconds = 1024 * 16 * 2 / 2 / (50e9 * 0.8)
    latency_ms = (8.4 + 14.0 + 0.5) / 1e3
    np.testing.assert_allclose(task.ms[:4], 1e3 * seconds + latency_ms)
    np.testing.assert_allclose(task.ms[4:], latency_ms)


def test_a_table_too_large_for_a_node_takes_the_next_ones_too():
    # 4 · 60 GB a node; 400 GB take two, of which the second is the first again.
    tables = [TableSpec("small", 10, 4), TableSpec("large", 10**9, 100)]
    small, large = table_row_wise(tables, Workload(machines(2, 4), 8, optimizer="sgd"))
    assert small.devices == (0, 1, 2, 3)
    assert large.devices == (4, 5, 6, 7, 0, 1, 2, 3)


def test_each_improvement_is_kept_only_if_it_is_one():
    steps = list(simulate_ablation(job(machines(2, 4))))
    names = [step.system for step in steps]
    assert names == ["baseline", "+ overlap", "+ sharding", "+ clusters"]
    times = [step.timeline.step_ms for step in steps]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]
    record = steps[0].record()
    assert record["samples_per_s"] == pytest.approx(1e3 * 4096 / times[0])
    # Nothing overlaps in the baseline: what is not waited for is some phase's.
    phases_ms = sum(phase["mean"] for phase in record["phases_ms"].values())
    assert phases_ms == pytest.approx(times[0] * (1 - record["waiting_share"]))


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("cluster", ["rb", "ub"])
def test_the_planners_model_of_embarks_system_is_that_of_its_step(nodes, cluster):
    real = machines(nodes, 4)
    no_latency = fleet.Efficiency(0.76, 0.8, 0.5, 0, 0, 0, 0)
    ideal = dataclasses.replace(real, efficiency=no_latency)
    workload = Workload(ideal, 65_536, optimizer="sgd")
    mine = dataclasses.replace(job(ideal), workload=workload)
    model = SystemModel(workload, (cluster,), mine.embark_key_bytes)
    bins = range(nodes) if nodes > 1 else range(4)
    placements = [
        Placement(table, cluster, len(bins), devices=tuple(bins)) for table in TABLES
    ]
    predicted_ms = sum(
        float(model.owner_ms(each)[-1].mean() + model.everywhere_ms(each)[0])
        for each in shapes_of(row_ranges(placements), FEATURES, workload)
    )
    spread = [over_gpus(each, model.gpus) for each in placements]
    spans = simulate_embark("", mine, spread, serial).timeline.spans
    embeddings = {"ids", "lookup", "exchange", "update"}
    device_ms = sum(s.task.ms for s in spans if s.task.phase in embeddings)
    # It leaves out that requesters sort ids, and sums of bags without ids.
    assert predicted_ms == pytest.approx(device_ms.mean(), rel=0.1)
