"""A program that grows has the optimum of the whole one."""

import numpy as np
import pytest
from scipy.optimize import linprog

from embark_jax.planner.search.linear_program import LinearProgram


def random_program(seed: int):
    """Costs, upper limits, one sum, and rows that some values satisfy."""
    dice = np.random.default_rng(seed)
    cost, upper = dice.normal(size=12), dice.uniform(0.5, 2.0, 12)
    inside = dice.uniform(0, 1, 12) * upper
    sums = np.ones((1, 12))
    rows = dice.normal(size=(8, 12)) * (dice.uniform(size=(8, 12)) < 0.5)
    return cost, upper, sums, sums @ inside, rows, rows @ inside + 0.1


@pytest.mark.parametrize("seed", range(5))
def test_grown_in_steps_it_equals_the_whole(seed):
    cost, upper, sums, totals, rows, limits = random_program(seed)
    program = LinearProgram(cost, upper, sums, totals)
    program.add_rows(rows[:3], limits[:3])
    program.solve()
    program.add_rows(rows[3:], limits[3:])
    found = program.solve()
    bounds = np.stack([np.zeros(12), upper], axis=1)
    expected = linprog(cost, rows, limits, sums, totals, bounds)
    assert found is not None
    assert found.cost == pytest.approx(expected.fun, abs=1e-6)
    assert found.variables @ cost == pytest.approx(expected.fun, abs=1e-6)
    assert found.multipliers == pytest.approx(-expected.ineqlin.marginals, abs=1e-6)


def test_without_a_solution_it_says_so():
    ones = np.ones((1, 2))
    program = LinearProgram(np.ones(2), np.ones(2), ones, np.array([2.0]))
    found = program.solve()
    assert found is not None
    assert found.cost == pytest.approx(2.0)
    assert found.multipliers.shape == (0,)
    program.add_rows(ones, np.array([1.0]))
    assert program.solve() is None
