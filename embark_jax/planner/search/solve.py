"""The search for a plan, from beginning to end: relaxation, rounding, local search.

On several nodes plans are searched for with a flat and with a hierarchical exchange of
RB, and not with both in one plan. The lower of both bounds counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from embark_jax.planner.layout.storage import Exchange
from embark_jax.planner.search.assignment import Assignment
from embark_jax.planner.search.instance import Instance
from embark_jax.planner.search.local_search import LocalSearch
from embark_jax.planner.search.relaxation import Relaxation, Solution
from embark_jax.planner.search.rounding import round_tables
from embark_jax.planner.search.swaps import swap_shards

CLOSE=True
CROWDING = (0.0, 0.5, 1.0, 0.25)
TRIES = 4
"""Roundings that are improved, at most."""
TABLES = 1200
"""Of all tries together: of larger models fewer roundings are improved."""
PROMISING = 1.1
"""Times the best step, up to which an exchange with this bound is searched."""
LIMIT_RATIO = 0.95
"""Of the limits of memory that are tried one after the other, until a plan fits."""
MOST_LIMITS = 20
MEMORY_PRICE = 0.05
"""What a device's fair share of the tables is taken to cost at least, in step times,
where memory is limited."""


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """What a search comes up with.

    Attributes:
      assignment: the best.
      bound_ms: no plan takes less.
      relaxations, solutions: of each exchange that was looked at.
    """

    assignment: Assignment
    bound_ms: float
    relaxations: dict[Exchange, Relaxation]
    solutions: dict[Exchange, Solution]


def solve(instance: Instance, exchanges: tuple[Exchange, ...]) -> Found:
    """The best plan of a search, and the bound.

    Args:
      instance: what is planned.
      exchanges: of RB, one of which a plan has.

    Raises:
      ValueError: if the tables do not fit.
    """
    relaxations = {
        exchange: Relaxation(instance, instance.allowed(exchange))
        for exchange in exchanges
    }
    # As if memory were no matter: more of it then changes no plan that fits.
    found = _search(instance, relaxations, np.inf)
    if found is not None and found.assignment.fits():
        return found
    limit_bytes = instance.memory.limit_bytes
    least_bytes = min(each.least_bytes() for each in relaxations.values())
    for _ in range(MOST_LIMITS):
        limited = _search(instance, relaxations, limit_bytes)
        if limited is None:
            break
        if limit_bytes == instance.memory.limit_bytes:
            bound_ms = limited.bound_ms
        if limited.assignment.fits():
            return dataclasses.replace(limited, bound_ms=bound_ms)
        limit_bytes = max(LIMIT_RATIO * limit_bytes, 1.0001 * least_bytes)
    raise ValueError(shortage(instance, least_bytes))


def _search(
    instance: Instance,
    relaxations: dict[Exchange, Relaxation],
    limit_bytes: float,
) -> Found | None:
    """None if no plan fits."""
    solutions = {
        exchange: solution
        for exchange, relaxation in relaxations.items()
        if (solution := relaxation.solve(limit_bytes)) is not None
    }
    if not solutions:
        return None
    best: Assignment | None = None
    for exchange in sorted(solutions, key=lambda each: solutions[each].bound_ms):
        solution = solutions[exchange]
        if best is not None and solution.bound_ms > best.step_ms() / PROMISING:
            continue
        for assignment in tries(instance, relaxations[exchange], solution, limit_bytes):
            if best is None or assignment.rank(limit_bytes) < best.rank(limit_bytes):
                best = assignment
    assert best is not None
    bound_ms = min(solution.bound_ms for solution in solutions.values())
    return Found(best, bound_ms, relaxations, solutions)


def tries(
    instance: Instance,
    relaxation: Relaxation,
    solution: Solution,
    limit_bytes: float,
    first: int = 0,
) -> Iterator[Assignment]:
    """Plans from several roundings; the first rounds up the largest fractions."""
    search = LocalSearch(instance, solution)
    ms_per_byte = 0.0
    if np.isfinite(limit_bytes):
        least = MEMORY_PRICE * solution.bound_ms / limit_bytes
        ms_per_byte = max(solution.ms_per_byte, least)
    number = int(np.clip(TABLES // len(instance.tables), 1, TRIES))
    for seed in range(first, first + number):
        dice = np.random.default_rng(seed)
        crowded = solution
        if seed % len(CROWDING):
            crowded = relaxation.solve(limit_bytes, crowding=CROWDING[seed % len(CROWDING)]) or solution
        again = seed >= len(CROWDING)
        chosen = round_tables(instance, crowded.tables, dice if again else None)
        assignment = search.construct(chosen, ms_per_byte)
        assignment = search.improve(assignment, dice, limit_bytes, ms_per_byte)
        if CLOSE:
            assignment = search.close_storages(assignment, dice, limit_bytes, ms_per_byte)
        yield swap_shards(assignment, search.movable, limit_bytes, ms_per_byte)


def shortage(instance: Instance, least_bytes: float) -> str:
    """What is short, by how much, where, and what would make it fit."""
    memory = instance.memory
    table_bytes = sum(
        count * use.rows * memory.row_bytes(use.dim)
        for count, use in zip(instance.counts, instance.candidates.uses, strict=True)
    )
    forced = any(force.is_fixed for force in instance.forced)
    devices = instance.workload.devices
    return memory.shortage(least_bytes, table_bytes / devices, forced)
