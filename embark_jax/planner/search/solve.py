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
from embark_jax.planner.search.whole_program import WholeProgram

CROWDING = (0.0, 0.5, 1.0, 0.25)
"""Of the relaxations whose roundings are improved (``Relaxation.solve``)."""
GROUPS = 240
"""Of all roundings together: of models with more unlike tables fewer are improved."""
ALIKE = 0.5
"""Groups for each table, up to which whole numbers of tables are solved for."""
NODES = 20
"""Of that solver's tree: a count, not a time, so that plans repeat."""
PROMISING = 1.1
"""Times the best step, up to which an exchange with this bound is searched."""
LIMIT_RATIO = 0.985
"""Of the limits of memory that are tried one after the other, until a plan fits."""
MOST_LIMITS, MORE_LIMITS = 20, 3
"""Of them all, and of those at which a plan fits: what fits in less may be better."""
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
    relaxations: dict[Exchange, Relaxation] = {
        exchange: Relaxation(instance, instance.allowed(exchange))
        for exchange in exchanges
    }
    # As if memory were no matter: more of it then changes no plan that fits.
    found = _search(instance, relaxations, np.inf)
    if found is not None and found.assignment.fits():
        return found
    limit_bytes = instance.memory.limit_bytes
    least_bytes = min(each.least_bytes() for each in relaxations.values())
    best, bound_ms, more = None, 0.0, MORE_LIMITS
    for number in range(MOST_LIMITS):
        limited = _search(instance, relaxations, limit_bytes)
        if limited is None or not more:
            break
        bound_ms = limited.bound_ms if number == 0 else bound_ms
        if limited.assignment.fits():
            step_ms, more = limited.assignment.step_ms(), more - 1
            if best is None or step_ms < best.assignment.step_ms():
                best = limited
        limit_bytes *= LIMIT_RATIO
    if best is None:
        raise ValueError(shortage(instance, least_bytes))
    return dataclasses.replace(best, bound_ms=bound_ms)


def _search(
    instance: Instance,
    relaxations: dict[Exchange, Relaxation],
    limit_bytes: float,
) -> Found | None:
    """None if no plan fits."""
    solutions: dict[Exchange, Solution] = {
        exchange: solution
        for exchange, relaxation in relaxations.items()
        if (solution := relaxation.solve(limit_bytes)) is not None
    }
    if not solutions:
        return None
    best: Assignment | None = None
    # What is planned for less memory is compared by what there is.
    there = instance.memory.limit_bytes if np.isfinite(limit_bytes) else np.inf
    for exchange in sorted(solutions, key=lambda each: solutions[each].bound_ms):
        solution = solutions[exchange]
        if best is not None and solution.bound_ms > best.step_ms() / PROMISING:
            continue
        for assignment in tries(instance, relaxations[exchange], solution, limit_bytes):
            if best is None or assignment.rank(there) < best.rank(there):
                best = assignment
    assert best is not None
    bound_ms = min(solution.bound_ms for solution in solutions.values())
    return Found(best, bound_ms, relaxations, solutions)


class Placer:
    """Makes plans of choices of candidates, for one relaxation's solution.

    Attributes:
      relaxed: the solution.
    """

    def __init__(self, instance: Instance, relaxed: Solution, limit_bytes: float):
        self.relaxed, self.limit_bytes = relaxed, limit_bytes
        self.search = LocalSearch(instance, relaxed)
        self.ms_per_byte = 0.0
        if np.isfinite(limit_bytes):
            least = MEMORY_PRICE * relaxed.bound_ms / limit_bytes
            self.ms_per_byte = max(relaxed.ms_per_byte, least)

    def place(self, chosen: np.ndarray, dice: np.random.Generator) -> Assignment:
        """A plan that begins with these candidates, ``[tables]``."""
        search, limits = self.search, (self.limit_bytes, self.ms_per_byte)
        assignment = search.construct(chosen, self.ms_per_byte)
        assignment = search.improve(assignment, dice, *limits)
        assignment = search.close_storages(assignment, dice, *limits)
        return swap_shards(assignment, search.movable, *limits)


def tries(
    instance: Instance, relaxation: Relaxation, relaxed: Solution, limit_bytes: float
) -> Iterator[Assignment]:
    """Plans of several choices of candidates: of the relaxation, of the relaxation with
    crowded levels, and of whole tables, where many are alike."""
    placer = Placer(instance, relaxed, limit_bytes)
    number = int(np.clip(GROUPS // len(instance.counts), 1, len(CROWDING)))
    for seed, crowding in enumerate(CROWDING[:number]):
        solution = relaxed
        if crowding:
            solution = relaxation.solve(limit_bytes, crowding=crowding) or relaxed
        dice = np.random.default_rng(seed)
        yield placer.place(round_tables(instance, solution.tables), dice)
    if len(instance.counts) <= ALIKE * len(instance.tables):
        program = WholeProgram(relaxation, relaxed, limit_bytes)
        solution, _ = program.solve(np.inf, nodes=NODES)
        if solution.tables.any():
            dice = np.random.default_rng(number)
            yield placer.place(round_tables(instance, solution.tables), dice)


def shortage(instance: Instance, least_bytes: float) -> str:
    """What is short, by how much, where, and what would make it fit."""
    memory = instance.memory
    table_bytes = sum(
        count * use.rows * memory.row_bytes(use.dim)
        for count, use in zip(instance.counts, instance.uses, strict=True)
    )
    forced = any(force.is_fixed for force in instance.forced)
    devices = instance.workload.devices
    return memory.shortage(least_bytes, table_bytes / devices, forced)
