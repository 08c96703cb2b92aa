"""The objective, against one that counts shard by shard."""

import pytest

from embark_jax.planner import price
from tests.planner.scalar_objective import random_problem, step_ms


@pytest.mark.parametrize("seed", range(40))
def test_it_prices_what_the_scalar_one_does(seed):
    placements, features, workload = random_problem(seed)
    priced = price(placements, features, workload)
    expected_ms = step_ms(placements, features, workload)
    assert priced.step_ms == pytest.approx(expected_ms, rel=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_taken_out_leaves_nothing(seed):
    placements, features, workload = random_problem(seed)
    priced = price(placements, features, workload)
    owners, loads, objective = priced.owners, priced.loads, priced.objective
    before_ms = objective.step_ms(loads)
    for i in range(0, len(owners), 2):
        loads.add(i, owners[i], times=-1)
    for i in range(0, len(owners), 2):
        loads.add(i, owners[i])
    assert objective.step_ms(loads) == pytest.approx(before_ms, rel=1e-6)
