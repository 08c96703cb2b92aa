"""Certify: a solver raises the bound and improves the plan, for as long as asked.

Every solution of the whole-number program is another choice of candidates, which local
search makes a plan of; its bound holds for all plans. Sizes of large shards are added
until there are none, then other roundings of the relaxation are improved.
"""

from __future__ import annotations

import dataclasses
import time

import numpy as np

from embark_jax.planner.layout.storage import Exchange
from embark_jax.planner.search.instance import Instance
from embark_jax.planner.search.relaxation import Relaxation
from embark_jax.planner.search.rounding import round_tables
from embark_jax.planner.search.solve import Found, Start
from embark_jax.planner.search.whole_program import WholeProgram

CLOSE = 1e-3
"""Gap at which there is nothing left to prove."""
LEAST_S, SHARE = 2.0, 3
"""Seconds of one run of the solver at least, and what the time that is left is divided
by."""


def certify(instance: Instance, found: Found, seconds: float) -> Found:
    """A plan that is no worse, and a bound that is no lower.

    Args:
      instance: what is planned.
      found: by the search.
      seconds: of wall time, about.
    """
    end = time.monotonic() + seconds
    best, limit_bytes = found.assignment, instance.memory.limit_bytes
    bounds_ms: dict[Exchange, float] = {}
    programs: dict[Exchange, WholeProgram] = {}
    starts: dict[Exchange, Start] = {}
    for exchange in found.exchanges:
        relaxation = Relaxation(instance, instance.allowed(exchange), drop=False)
        relaxed = relaxation.solve(limit_bytes)
        bounds_ms[exchange] = np.inf if relaxed is None else relaxed.bound_ms
        if relaxed is not None:
            programs[exchange] = WholeProgram(relaxation, relaxed, limit_bytes)
            starts[exchange] = Start(relaxation, relaxed, limit_bytes)
    seed = 0
    while time.monotonic() < end:
        step_ms, seed = best.step_ms(), seed + 1
        if min(bounds_ms.values()) * (1 + CLOSE) >= step_ms:
            break
        exchange = min(starts, key=lambda each: bounds_ms[each])
        start, program = starts[exchange], programs.get(exchange)
        tables = start.relaxed.tables
        if program is not None:
            left_s = max(LEAST_S, (end - time.monotonic()) / SHARE)
            choice, ended = program.solve(step_ms, seconds=left_s)
            # It leaves out what no better plan takes: no more is said of worse ones.
            reached_ms = min(choice.bound_ms, step_ms)
            bounds_ms[exchange] = max(bounds_ms[exchange], reached_ms)
            tables = choice.tables if choice.tables.any() else tables
            if ended and not program.add_sizes(choice):
                del programs[exchange]  # the solver has nothing more to say
        dice = np.random.default_rng(seed)
        chosen = round_tables(instance, tables, dice)
        other = start.place(chosen, dice, found.ms_per_byte)
        if other.fits() and other.step_ms() < step_ms:
            best = other
    bound_ms = max(found.bound_ms, min(bounds_ms.values()))
    return dataclasses.replace(found, assignment=best, bound_ms=bound_ms)
