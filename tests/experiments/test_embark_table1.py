"""The model of EMBark's system, against figures worked out by hand."""

import dataclasses

import numpy as np
import pytest

from embark_jax.planner import Workload
from embark_jax.planner.request.workload import table_uses
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.simulator import serial
from experiments.embark_table1.loads import count
from experiments.embark_table1.placements import embark, table_row_wise, thresholds
from experiments.embark_table1.system import simulate_ablation, simulate_embark
from tests.simulator.jobs import FEATURES, TABLES, job, machines


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


def test_a_table_too_large_for_a_node_takes_all():
    # 4 · 60 GB a node, and 400 GB.
    tables = [TableSpec("small", 10, 4), TableSpec("large", 10**9, 100)]
    small, large = table_row_wise(tables, Workload(machines(2, 4), 8, optimizer="sgd"))
    assert small.devices == (0, 1, 2, 3)
    assert large.devices == tuple(range(8))


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


def test_clusters_by_two_numbers():
    uses = table_uses(TABLES, FEATURES, job(machines(2, 4)).workload)
    # Sizes are big, wide, tiny; of the others "wide" has fewer ids a bag than "big".
    assert thresholds(uses, 1, 1) == ["rb", "ub", "dp"]
    assert thresholds(uses, 0, 2) == ["rb", "ub", "ub"]


def test_the_greedy_search_by_hand():
    """A value costs 4 an id for its lookup and 1.5 · 60 to be sent, on two nodes."""
    workload = Workload(machines(2, 4), 8, optimizer="sgd")
    tables = [TableSpec("hot", 1000, 64), TableSpec("mild", 1000, 32)]
    features = [FeatureSpec("hot", hotness=100), FeatureSpec("mild", hotness=10)]
    hot, mild = embark(tables, features, workload, ["rb", "rb"])
    # Whole, "hot" costs one node 64 · (400 + 90). Halved by columns it costs both
    # 32 · 490, less than halved by rows, 64 · (200 + 90). "mild" costs one of them
    # 32 · (40 + 90); halved by rows, since it is narrow, both 32 · (20 + 90).
    assert (hot.row_shards, hot.column_shards) == (4, 2)
    assert hot.devices == (0, 4, 1, 5, 2, 6, 3, 7)
    assert (mild.row_shards, mild.column_shards) == (8, 1)


def test_the_hottest_rows_are_on_any_device():
    workload = Workload(machines(2, 4), 800, 1.1)
    placements = table_row_wise(TABLES[:1], workload)
    loads = [count(placements, FEATURES[:1], workload, seed).ids for seed in range(9)]
    assert len({int(ids.argmax()) for ids in loads}) == 4
    assert {round(ids.sum()) for ids in loads} == {800 * 20}
    balanced = count(placements, FEATURES[:1], workload).balanced()
    np.testing.assert_allclose(balanced.ids, 800 * 20 / 8)
