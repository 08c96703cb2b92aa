"""Certify: a solver raises the bound and improves the plan, for as long as asked.

The relaxation with whole tables is a mixed-integer program, which HiGHS solves. In
symbols, added to the rows of the relaxation::

    x_c whole                                                              tables
    y_r whole                              partial sums, and uses of storages

Example: 150 shards that each make a partial sum, on 128 devices, are 1.17 a device in
the relaxation, but 2 on the fullest in any plan.

The program is asked for a *goal* between bound and plan: it leaves out candidates that
raise the bound above the goal, which no plan below the goal takes, and says that no
plan is below the goal, or below its own bound. The nearer the goal, the smaller the
program. Its solution is another choice of candidates, from which local search makes a
plan. When the solver finds nothing more, other roundings of that choice are improved.
"""

from __future__ import annotations

import dataclasses
import time

import numpy as np
from scipy import sparse

from embark_jax.planner.search.instance import Instance
from embark_jax.planner.search.relaxation import Relaxation, Solution
from embark_jax.planner.search.solve import SearchResult, Start, round_tables

SHORTEST_S = 2.0
"""Shortest run of the solver, in seconds; others take half of the time that is left."""
SAFETY = 1e-6
"""Share by which a bound is lowered for the solver's tolerances."""


def certify(instance: Instance, result: SearchResult, seconds: float) -> SearchResult:
    """Returns a plan that is no worse, and a bound that is no lower.

    Args:
      instance: instance to plan.
      result: result of the search.
      seconds: approximate wall time.
    """
    end = time.monotonic() + seconds
    # A candidate that is dominated in the relaxation may have smaller shards.
    relaxation = Relaxation(instance, drop=False)
    relaxed = relaxation.solve()
    if relaxed is None:  # at the solver's tolerances: memory hardly suffices
        return result
    start = Start(relaxation, relaxed)
    best = result.assignment
    bound_ms = max(result.bound_ms, relaxed.bound_ms)
    tables = relaxed.tables
    share = 0.5  # of the way from the bound to the plan: where the goal lies
    exhausted = False
    seed = 0
    while time.monotonic() < end:
        step_ms = best.step_ms()
        if bound_ms * (1 + instance.params.gap) >= step_ms:
            break
        if not exhausted:
            left_s = max(SHORTEST_S, (end - time.monotonic()) / 2)
            goal_ms = bound_ms + share * (step_ms - bound_ms)
            solution, ended = solve_whole(relaxation, relaxed, goal_ms, left_s)
            share = 0.5 if ended else share / 2
            bound_ms = max(bound_ms, min(solution.bound_ms, goal_ms))
            exhausted = ended and bound_ms < goal_ms
            if solution.tables.any():
                tables = solution.tables
        seed += 1
        dice = np.random.default_rng(seed)
        chosen = round_tables(instance, tables, dice)
        other = start.plan_from(chosen, dice, result.ms_per_byte)
        if other.fits() and other.step_ms() < step_ms:
            best = other
    return dataclasses.replace(result, assignment=best, bound_ms=bound_ms)


def solve_whole(
    relaxation: Relaxation, relaxed: Solution, goal_ms: float, seconds: float
) -> tuple[Solution, bool]:
    """Returns ``(bound and candidates, whether the solver came to its end)``; no plan
    below ``goal_ms`` is below the bound.

    Args:
      relaxation, relaxed: the relaxation, without any candidate left out, and its
        solution.
      goal_ms: step time above which plans do not matter.
      seconds: time after which the solver gives up.
    """
    from scipy.optimize import milp  # takes 0.2 s to import, and is seldom needed

    instance = relaxation.instance
    counts = instance.counts
    live = len(relaxation.live)
    above_ms = relaxed.bound_ms + relaxed.above_ms[relaxation.live]
    kept = np.flatnonzero(above_ms <= goal_ms)
    rows = relaxation.spread.rows
    # Variables: tables of the kept candidates, then peaks of rows.
    columns = np.append(kept, live + np.arange(rows))
    one_each = sparse.csr_matrix(
        (np.ones(len(kept)), (relaxation.group[kept], np.arange(len(kept)))),
        (len(counts), len(columns)),
    )
    largest = relaxation.largest_rows(np.unique(relaxation.shards[0]))
    limit_rows, its_limits = relaxation.limit_rows()
    matrix = sparse.vstack(
        [relaxation.peak_rows(), largest, sparse.csr_matrix(limit_rows)]
    ).tocsc()[:, columns]
    limits = np.zeros(matrix.shape[0])
    limits[-len(its_limits) :] = its_limits
    cost = relaxation.cost[columns]
    scale = float(cost.max())
    upper = np.append(counts[relaxation.group[kept]], np.full(rows, np.inf))
    optimum = milp(
        cost / scale,
        integrality=np.append(np.ones(len(kept)), relaxation.spread.whole),
        bounds=(np.zeros(len(upper)), upper),
        constraints=[(one_each, counts, counts), (matrix, -np.inf, limits)],
        options={"mip_rel_gap": instance.params.gap, "time_limit": seconds},
    )
    tables = np.zeros(len(instance.candidates))
    if optimum.x is not None:
        tables[relaxation.live[kept]] = np.round(optimum.x[: len(kept)])
    bound_ms = relaxed.bound_ms
    if optimum.status == 2:  # no plan is below the goal
        bound_ms = goal_ms
    elif optimum.mip_dual_bound is not None and np.isfinite(optimum.mip_dual_bound):
        bound_ms = scale * float(optimum.mip_dual_bound) * (1 - SAFETY)
    return Solution(bound_ms, tables, np.zeros(len(tables))), optimum.status != 1
