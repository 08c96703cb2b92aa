"""A plan's time taken apart adds up again."""

import dataclasses

import numpy as np
import pytest

from embark_jax.planner import price
from embark_jax.planner.request.workload import Workload
from embark_jax.plans import fleet
from embark_jax.plans.placement import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec

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
    priced = price(placed, FEATURES, circumstances)
    predicted = priced.prediction()
    for item in priced.work_items():
        travels = item.collective is not None
        assert (item.travel_ms.sum(axis=0) > 0).all() == travels
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


def test_impossible_placements_are_refused():
    with pytest.raises(ValueError, match=r"table 'rb': devices \[3\] must lie in 0..1"):
        price(PLACEMENTS[1:2], FEATURES, workload(1, 2))
