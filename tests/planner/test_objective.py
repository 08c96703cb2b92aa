"""The objective: against one that counts shard by shard, and against its own parts."""

import numpy as np
import pytest

from embark_jax.planner import ProgramModel, phases
from embark_jax.planner.cost.breakdown import break_down
from embark_jax.planner.cost.phases import critical_ms
from embark_jax.planner.cost.predict import price
from tests.planner.embark_formula import EmbarkModel
from tests.planner.scalar_objective import random_problem, step_ms


@pytest.mark.parametrize("seed", range(40))
def test_it_prices_what_the_scalar_one_does(seed):
    placements, features, workload = random_problem(seed)
    model = ProgramModel(workload)
    priced = price(placements, features, workload, model)
    expected_ms = step_ms(placements, features, workload, model)
    assert priced.objective.step_ms(priced.loads) == pytest.approx(
        expected_ms, rel=1e-9
    )


@pytest.mark.parametrize("seed", range(5))
def test_embarks_formula_is_one_phase(seed):
    placements, features, workload = random_problem(seed)
    placements = [each for each in placements if each.cluster == "rb"]
    if not placements:
        return
    model = EmbarkModel(workload)
    priced = price(placements, features, workload, model)
    expected_ms = step_ms(placements, features, workload, model)
    assert priced.objective.step_ms(priced.loads) == pytest.approx(
        expected_ms, rel=1e-9
    )


@pytest.mark.parametrize("seed", range(10))
def test_phases_and_tables_sum_to_the_step(seed):
    placements, features, workload = random_problem(seed)
    model = ProgramModel(workload)
    priced = price(placements, features, workload, model)
    expected_ms = priced.objective.step_ms(priced.loads)
    parts = phases(placements, features, workload, model)
    assert sum(critical_ms(parts).values()) == pytest.approx(expected_ms, rel=1e-9)
    found = break_down(placements, features, workload, model)
    assert sum(found.table_ms.values()) == pytest.approx(expected_ms, rel=1e-9)
    device_ms = np.sum([*found.phase_ms.values()], axis=0)
    np.testing.assert_allclose(
        device_ms, priced.objective.device_ms(priced.loads), rtol=1e-9
    )
    assert device_ms.max() <= expected_ms * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_taken_out_leaves_nothing(seed):
    placements, features, workload = random_problem(seed)
    model = ProgramModel(workload)
    candidates, owners, loads, objective = price(placements, features, workload, model)
    before_ms = objective.step_ms(loads)
    for i in range(0, len(candidates), 2):
        loads.add(i, owners[i], times=-1)
    for i in range(0, len(candidates), 2):
        loads.add(i, owners[i])
    assert objective.step_ms(loads) == pytest.approx(before_ms, rel=1e-6)
