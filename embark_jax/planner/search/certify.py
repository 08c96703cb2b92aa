"""Certify: a solver raises the bound and improves the plan, for as long as asked.

The whole-number program is asked for a *goal* between bound and plan: it leaves out
candidates that no plan below the goal takes, and says that no plan is below the goal,
or below its own bound. The nearer the goal, the smaller the program. Its solution is
another choice of candidates, from which local search makes a plan. The program gets
sizes of large shards until no more are found; then other roundings of the relaxation
are improved.
"""

from __future__ import annotations

import dataclasses
import time

import numpy as np

from embark_jax.planner.search.instance import Instance
from embark_jax.planner.search.relaxation import Relaxation
from embark_jax.planner.search.rounding import round_tables
from embark_jax.planner.search.solve import Found, Start
from embark_jax.planner.search.whole_program import WholeProgram

CLOSE = 1e-3
"""Gap that needs no further proof."""
LEAST_S, SHARE = 2.0, 3
"""Shortest time of one run of the solver, in seconds, and the divisor of the remaining
time."""
GOAL = 0.5
"""Part of the way from the bound to the plan at which the first goal lies; half of that
after a run that did not come to its end."""


def certify(instance: Instance, found: Found, seconds: float) -> Found:
    """Returns a plan that is no worse, and a bound that is no lower.

    Args:
      instance: instance to plan.
      found: result of the search.
      seconds: approximate wall time.
    """
    end = time.monotonic() + seconds
    # A candidate that is dominated in the relaxation may have smaller shards.
    relaxation = Relaxation(instance, drop=False)
    relaxed = relaxation.solve()
    if relaxed is None:  # at the solver's tolerances: memory hardly suffices
        return found
    start = Start(relaxation, relaxed)
    program: WholeProgram | None = WholeProgram(relaxation, relaxed)
    best, bound_ms = found.assignment, max(found.bound_ms, relaxed.bound_ms)
    seed, part = 0, GOAL
    while time.monotonic() < end and bound_ms * (1 + CLOSE) < best.step_ms():
        step_ms, seed, tables = best.step_ms(), seed + 1, relaxed.tables
        if program is not None:
            left_s = max(LEAST_S, (end - time.monotonic()) / SHARE)
            goal_ms = bound_ms + part * (step_ms - bound_ms)
            choice, ended = program.solve(goal_ms, seconds=left_s)
            part = GOAL if ended else part / 2
            bound_ms = max(bound_ms, min(choice.bound_ms, goal_ms))
            tables = choice.tables if choice.tables.any() else tables
            reached = bound_ms >= goal_ms
            if ended and not reached and not program.add_sizes(choice):
                program = None  # the solver finds nothing more
        dice = np.random.default_rng(seed)
        chosen = round_tables(instance, tables, dice)
        other = start.place(chosen, dice, found.ms_per_byte)
        if other.fits() and other.step_ms() < step_ms:
            best = other
    return dataclasses.replace(found, assignment=best, bound_ms=bound_ms)
