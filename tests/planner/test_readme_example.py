"""The worked example of ``embark_jax/planner/README.md``, number by number."""

from pathlib import Path

import numpy as np
import pytest

import embark_jax.planner
from embark_jax.planner import Workload, plan_for, price
from embark_jax.planner.cost.candidates import Load
from embark_jax.planner.cost.work import Peak
from embark_jax.plans import fleet
from embark_jax.plans.placement import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec

README = (Path(embark_jax.planner.__file__).parent / "README.md").read_text()
GPUS = fleet.Fleet(
    fleet.DeviceSpec("toy", 1e9, 1e9, 1e9, 1e9, 1e9),
    gpus_per_node=2,
    efficiency=fleet.Efficiency(1.0, 1.0, 1.0, 10.0, 0.0, 0.0),
)
TABLES = [TableSpec("user", 1000, 8), TableSpec("item", 100, 8)]
TABLES.append(TableSpec("country", 10, 8))
FEATURES = [FeatureSpec("user"), FeatureSpec("item", hotness=4), FeatureSpec("country")]
WORKLOAD = Workload(GPUS, 200, optimizer="sgd", kernels="mosaic_gpu")
PLACEMENTS = [
    Placement(TABLES[0], "rb", devices=(0,)),
    Placement(TABLES[1], "rb", devices=(1,)),
    Placement(TABLES[2], "dp"),
]


def row(beginning):
    """The cells of the table's row that begins so, without bold."""
    (line,) = [each for each in README.splitlines() if each.startswith(beginning)]
    return [cell.strip(" *") for cell in line.strip("|").split("|")]


def test_every_number_of_the_example():
    priced = price(PLACEMENTS, FEATURES, WORKLOAD)
    each, loads, objective = priced.candidates, priced.loads, priced.objective
    peaks, rb = priced.peaks[:, 1], 1
    assert row("| everywhere")[0].endswith(
        "`user` {:.4f}, `item` {:.4f}, `country` {:.4f}".format(*each.everywhere_ms)
    )
    assert row("| everywhere")[-1] == f"{each.everywhere_ms.sum():.4f}"
    assert row("| fixed")[-1] == f"{objective.prices[Peak.USE].sum():.4f}"
    for name, kind, peak in (
        ("| partial sums", loads.own[Load.SUMS, rb], Peak.SUMS),
        ("| ids", loads.own[Load.CERTAIN, rb], Peak.IDS),
        ("| lookup", loads.own[Load.LOOKUP_MS, rb], Peak.LOOKUP),
        ("| gradients", loads.own[Load.GRADIENTS_MS, rb], Peak.GRADIENTS),
    ):
        *gpus, top, unit_ms, ms = map(float, row(name)[1:])
        np.testing.assert_allclose(gpus, kind, rtol=5e-3)
        assert top == pytest.approx(peaks[peak], rel=5e-3)
        assert unit_ms == pytest.approx(objective.prices[peak, rb], rel=1e-3)
        assert ms == pytest.approx(objective.prices[peak, rb] * peaks[peak], rel=5e-3)
    *gpus, top, _, ms = map(float, row("| update")[1:])
    np.testing.assert_allclose(gpus, loads.update_ms, rtol=5e-3)
    assert top == ms == pytest.approx(loads.update_ms.max(), rel=5e-3)
    assert row("| **step**")[-1] == f"{objective.step_ms(loads):.4f}"


def test_what_the_planner_makes_of_it():
    found = plan_for(WORKLOAD, TABLES, FEATURES)
    assert {placement.cluster for placement in found.placements} == {"dp"}
    assert f"{found.prediction.lower_bound_ms:.3f} ms" in README
    said = f"{found.prediction.step_ms:.4f} ms, gap {found.prediction.gap:.1%}"
    assert said.replace("%", " %") in README
