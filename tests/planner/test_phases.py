"""The phases of a step add up to its prediction."""

import numpy as np
import pytest

from embark_jax.planner import Workload, plan, price
from embark_jax.plans import fleet
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from tests.planner import published

TABLES = [
    TableSpec("a", 1000, 8),
    TableSpec("b", 50, 8),
    TableSpec("c", 10**6, 16),
    TableSpec("d", 3000, 32),
]
FEATURES = [FeatureSpec(t.name, hotness=3, weighted=t.name == "a") for t in TABLES]
PLACEMENTS = [
    Placement(TABLES[0], "rb", 2, 1, (0, 5)),
    Placement(TABLES[1], "dp"),
    Placement(TABLES[2], "ub", 2, 2, (0, 1, 2, 2)),
    Placement(TABLES[3], "rb", 1, 4, (7, 7, 1, 0)),
]


@pytest.mark.parametrize("nodes", [1, 2, 8])
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_phases_add_up_to_the_prediction(nodes, optimizer):
    workload = Workload(fleet.dgx_h100(nodes, 8 // nodes), 800, 1.1, 1.25, optimizer)
    priced = price(PLACEMENTS, FEATURES, workload)
    predicted, found = priced.prediction(), priced.work_items()
    device_ms = sum(item.step_ms.sum(axis=0) for item in found)
    np.testing.assert_allclose(device_ms, predicted.device_ms, rtol=1e-12)
    lasts = predicted.breakdown.critical_ms
    assert predicted.step_ms == pytest.approx(sum(lasts.values()))
    assert predicted.step_ms >= np.max(device_ms)
    assert len(set(predicted.device_ms)) > 1
    names = {item.phase for item in found}
    assert names >= {"id exchange", "row exchange", "gradient exchange", "update"}
    for item in found:
        travels = item.collective is not None
        assert (item.travel_ms.sum(axis=0) > 0).all() == travels


def test_a_plan_is_predicted_as_the_search_predicted_it():
    tables, features = published.model("DLRM-DCNv2")
    machines = fleet.dgx_h100(2)
    planned = plan(tables, features, machines, 65_536, zipf_exponent=1.1)
    workload = Workload(machines, 65_536, 1.1, overlap=True)
    again = price(planned.placements, planned.features, workload).prediction()
    assert planned.prediction is not None
    assert again.step_ms == pytest.approx(planned.prediction.step_ms)
    assert again.device_ms == pytest.approx(planned.prediction.device_ms)
    assert again.device_bytes == pytest.approx(planned.prediction.device_bytes)
    assert again.lower_bound_ms == 0


def test_impossible_placements_are_refused():
    workload = Workload(fleet.dgx_h100(1, 4), 800)
    with pytest.raises(ValueError, match=r"table 'a': devices \[5\] must lie in 0..3"):
        price(PLACEMENTS[:1], FEATURES, workload)
