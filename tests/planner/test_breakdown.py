"""A plan's time taken apart adds up again, and its reasons name what decides."""

import dataclasses

import numpy as np
import pytest

from embark_jax.planner import plan, price
from embark_jax.planner.request.workload import Workload
from embark_jax.planner.search.reasons import split, times
from embark_jax.plans import fleet
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.plan import Plan
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from tests.planner import published

TABLES = [TableSpec(name, 1000, 8) for name in ("dp", "rb", "ub", "columns")]
FEATURES = [
    FeatureSpec("dp", hotness=2),
    FeatureSpec("rb", hotness=3),
    FeatureSpec("ub", hotness=5),
    FeatureSpec("columns", hotness=4, pooling="none"),
]
PLACEMENTS = [
    Placement(TABLES[0], "dp"),
    Placement(TABLES[1], "rb", 2, 1, (1, 3)),
    Placement(TABLES[2], "ub", 1, 1, (2,)),
    Placement(TABLES[3], "ub", 2, 2, (0, 1, 2, 3)),
]


def workload(nodes=2, gpus=2, optimizer="sgd"):
    return Workload(fleet.dgx_h100(nodes, gpus), 80, 1.1, 1.25, optimizer)


@pytest.mark.parametrize("exchange", ["flat", "hierarchical"])
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_phases_and_tables_add_up_to_the_step(optimizer, exchange):
    circumstances = workload(optimizer=optimizer)
    placed = [
        *PLACEMENTS[:1],
        *(dataclasses.replace(p, exchange=exchange) for p in PLACEMENTS[1:]),
    ]
    predicted = price(placed, FEATURES, circumstances).prediction()
    found = predicted.breakdown
    by_phase = np.sum([*found.phase_ms.values()], axis=0)
    np.testing.assert_allclose(by_phase, predicted.device_ms)
    assert sum(found.critical_ms.values()) == pytest.approx(predicted.step_ms)
    assert sum(found.table_ms.values()) == pytest.approx(predicted.step_ms)
    assert found.table_ms.keys() == {table.name for table in TABLES}
    assert min(found.table_ms.values()) > 0


def test_ids_by_hand():
    # A device has 20 samples: 60 ids for "rb", whose halves lie on devices 1 and 3.
    circumstances = workload()
    alone = price(PLACEMENTS[1:2], FEATURES[1:2], circumstances).breakdown()
    asked = np.arange(1, 1001.0) ** -1.1
    of_shards = np.bincount(np.arange(1000) % 2, asked)
    even = of_shards[0] / asked.sum()
    assert alone.hottest_row_shard["rb"] == pytest.approx(2 * even, rel=1e-5)
    np.testing.assert_allclose(alone.device_ids, [0, 3 * even, 0, 3 - 3 * even], 1e-5)
    # Slot and bag of 5 bytes an id, and where their block ends; partial sums of 20 bags
    # of 8 columns, and their gradients; besides, buffers have places for the slack.
    assert alone.padded_bytes >= 5 * 60 * even + 4 + 2 * 640


def test_a_plan_keeps_its_breakdown():
    planned = plan(*published.model("DLRM-DCNv2"), fleet.dgx_h100(), 65_536)
    breakdown = planned.prediction.breakdown
    assert sum(breakdown.table_ms.values()) == pytest.approx(planned.prediction.step_ms)
    assert Plan.from_json(planned.to_json()) == planned


@pytest.mark.parametrize(
    ("shape", "owners", "nodes", "words"),
    [
        ((1, 1), (), 2, "replicated"),
        ((1, 1), (3,), 2, "whole on one device"),
        ((2, 1), (2, 3), 2, "row-wise inside a node"),
        ((2, 1), (2, 3), 1, "row-wise over 2 devices"),
        ((1, 2), (3, 3), 2, "column-wise on one device"),
        (
            (2, 2),
            (0, 1, 2, 3),
            2,
            "row- and column-wise over 4 devices of 2 nodes",
        ),
    ],
)
def test_splits_in_words(shape, owners, nodes, words):
    machines = fleet.dgx_h100(nodes, 4 // nodes)
    assert split(*shape, np.array(owners, int), machines) == words


def test_reasons_say_what_other_clusters_would_take():
    # 20,000 samples a device have 800,000 ids: RB returns 20,000 pooled rows for them,
    # UB some half million rows, and DP sums the whole million.
    tables, features = [TableSpec("t", 10**6, 128)], [FeatureSpec("t", hotness=40)]
    machines = fleet.dgx_h100(1, 4)
    words = plan(tables, features, machines, 80_000).placements[0].reason
    assert "alone it would take longer in DP " in words
    others = [each.split() for each in words.split(" in ")[1].split(", ")]
    ratios = {cluster: float(ratio[:-1]) for cluster, ratio in others}
    assert ratios["DP"] > ratios["UB"] > 2
    # A hot row shard is told of: rows 0, 4 and 8 of 10 are asked for by
    # (1 + 0.170 + 0.089) / 2.68 = 47 % of ids, which is 1.9 times a quarter.
    skewed = plan(
        [TableSpec("t", 10, 128)],
        features,
        machines,
        80_000,
        zipf_exponent=1.1,
        forced={"t": ForcedPlacement("rb", 4)},
    )
    assert skewed.prediction.breakdown.hottest_row_shard["t"] == pytest.approx(
        1.88, abs=0.01
    )


def test_ratios_in_words():
    assert [times(x) for x in (0.913, 1.44, 28.6, 1234.0)] == [
        "0.91×",
        "1.4×",
        "29×",
        "1,200×",
    ]


def test_every_table_of_a_plan_has_its_reason():
    planned = plan(
        TABLES,
        FEATURES,
        fleet.dgx_h100(),
        80,
        forced={"ub": ForcedPlacement("ub"), "rb": ForcedPlacement("rb", 2)},
    )
    reasons = {p.table.name: p.reason for p in planned.placements}
    staged = ForcedPlacement(row_shards=16, exchange="hierarchical")
    on_nodes = plan(TABLES, FEATURES, fleet.dgx_h100(2), 80, forced={"rb": staged})
    assert "row-wise over 16 devices of 2 nodes" in on_nodes.placements[1].reason
    assert reasons["ub"].startswith("forced, ")
    assert reasons["rb"].startswith("forced, row-wise")
    assert all(reasons.values())
