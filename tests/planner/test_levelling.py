"""Loads of row shards that level devices, against all loads there are."""

import dataclasses

import numpy as np
import pytest

from embark_jax import fleet
from embark_jax.planner import (
    ForcedPlacement,
    Placement,
    ProgramModel,
    Workload,
    plan,
    predict,
)
from embark_jax.planner.search.candidates import weigh
from embark_jax.planner.ledger import Ledger
from embark_jax.planner.levelling import LEAST_LOAD, MOST_LOAD, Levelling
from embark_jax.planner.cost.memory import Memory
from embark_jax.planner.placing import Placing
from embark_jax.planner.layout.storage import EVEN_LOAD
from embark_jax.planner.request.workload import shape_of
from embark_jax.tables import FeatureSpec, TableSpec

WORKLOAD = Workload(fleet.dgx_h100(1, gpus_per_node=2), 4096, zipf_exponent=1.1)


def placed(placements, features, workload=WORKLOAD):
    """As the search has it, and what levels it."""
    model, memory = ProgramModel(workload), Memory(workload)
    shapes = [shape_of(each, features, workload) for each in placements]
    entries = [
        (weigh(shape, workload, model, memory), np.array(each.devices))
        for shape, each in zip(shapes, placements, strict=True)
    ]
    storages = sorted({shape.storage for shape in shapes})
    placing = Placing(Ledger(storages, workload.devices, model, memory), 0.0)
    placing.candidates, placing.owners = map(list, zip(*entries, strict=True))
    placing.enter(entries)
    return placing, Levelling(workload, model, memory)


def lopsided(hotness):
    """A table on both devices, and one on the first alone."""
    tables = [TableSpec("both", 10**6, 16), TableSpec("first", 10**6, 16)]
    features = [FeatureSpec("both", hotness=100), FeatureSpec("first", hotness=hotness)]
    placements = [
        Placement(tables[0], "rb", 2, devices=(0, 1)),
        Placement(tables[1], "rb", devices=(0,)),
    ]
    return placements, features


@pytest.mark.parametrize("hotness", [5, 20, 40])
def test_levelled_is_the_best_of_all_loads(hotness):
    placements, features = lopsided(hotness)
    model = ProgramModel(WORKLOAD)

    def step_ms(load):
        loads = load, 2 * EVEN_LOAD - load
        dealt = dataclasses.replace(placements[0], row_loads=loads)
        return predict([dealt, placements[1]], features, WORKLOAD, model).step_ms

    best_ms = min(map(step_ms, range(510, 1491, 10)))
    placing, levelling = placed(placements, features)
    before_ms = placing.ledger.step_ms()
    assert best_ms < 0.99 * before_ms
    assert levelling.step_ms(placing) == pytest.approx(best_ms, rel=2e-3)
    levelling.level(placing)
    assert placing.ledger.step_ms() == pytest.approx(best_ms, rel=1e-3)
    loads = placing.candidates[0].shape.row_loads
    assert loads[0] < EVEN_LOAD < loads[1]
    assert placing.candidates[1].shape.row_loads == ()


def test_no_load_is_less_or_more_than_allowed():
    placements, features = lopsided(1000)
    placing, levelling = placed(placements, features)
    levelling.level(placing)
    (loads,) = (c.shape.row_loads for c in placing.candidates if c.shape.row_loads)
    assert min(loads) >= LEAST_LOAD * EVEN_LOAD - 1
    assert max(loads) <= MOST_LOAD * EVEN_LOAD + 1


def test_uniform_ids_cannot_be_dealt_otherwise():
    uniform = dataclasses.replace(WORKLOAD, zipf_exponent=0.0)
    placing, levelling = placed(*lopsided(20), uniform)
    before_ms, before = placing.ledger.step_ms(), placing.entries()
    assert levelling.step_ms(placing) == before_ms
    levelling.level(placing)
    assert placing.entries() == before


def test_a_plan_is_levelled_and_predicts_what_it_costs():
    placements, features = lopsided(20)
    tables = [each.table for each in placements]
    forced = {
        each.table.name: ForcedPlacement("rb", each.row_shards, 1, each.devices)
        for each in placements
    }
    planned = plan(
        tables, features, WORKLOAD.fleet, 4096, forced=forced, zipf_exponent=1.1
    )
    assert planned.placements[0].row_loads
    prediction = planned.prediction
    workload = dataclasses.replace(WORKLOAD, optimizer="rowwise_adagrad")
    again = predict(planned.placements, features, workload, ProgramModel(workload))
    assert prediction.step_ms == pytest.approx(again.step_ms)
    even = predict(placements, features, workload, ProgramModel(workload))
    assert prediction.step_ms < even.step_ms
    assert type(planned).from_json(planned.to_json()) == planned
