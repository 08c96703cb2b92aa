"""The search for a plan, from beginning to end: relaxation, rounding, local search.

On several nodes plans are searched for with a flat and with a hierarchical exchange of
RB, and not with both in one plan. The lower of both bounds counts.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

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
"""Crowding of the relaxations whose roundings are improved (``Relaxation.solve``)."""
GROUPS = 240
"""Groups of alike tables in all roundings together: of models with more of them, fewer
roundings are improved."""
ALIKE = 0.5
"""Groups for each table, up to which whole numbers of tables are solved for."""
NODES = 20
"""Nodes of that solver's tree: a count, not a time, so that plans repeat."""
PROMISING = 1.02
"""Times the best step, up to which an exchange with this bound is searched."""
MEMORY_PRICE, DEARER = 0.1, 2.0
"""Where memory is short: what all of it is taken to cost at first, in step times, and
times that price from one search to the next."""
MOST_PRICES, MORE_PRICES = 12, 2
"""Searches, and those after the first whose plan fits: a dearer one may be better."""


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """What a search comes up with.

    Attributes:
      assignment: the best.
      bound_ms: no plan takes less.
      exchanges: of RB, that were looked at.
      ms_per_byte: the price of memory at which it was found.
    """

    assignment: Assignment
    bound_ms: float
    exchanges: tuple[Exchange, ...]
    ms_per_byte: float = 0.0


def solve(instance: Instance, exchanges: tuple[Exchange, ...]) -> Found:
    """The best plan of a search, and the bound.

    Where memory is short it has a price, which rises until a plan fits: the fullest
    device counts for all, and only whole plans say how full it is.

    Args:
      instance: what is planned.
      exchanges: of RB, one of which a plan has.

    Raises:
      ValueError: if the tables do not fit.
    """
    relaxations = [
        Relaxation(instance, allowed)
        for exchange in exchanges
        for allowed in _searched(instance, exchange)
    ]
    limit_bytes = instance.memory.limit_bytes
    if table_bytes(instance) > limit_bytes:  # no search is needed to say so
        raise ValueError(shortage(instance, relaxations))
    # As if memory were no matter: more of it then changes no plan that fits.
    starts = _starts(relaxations, np.inf)
    best = _search(starts, 0.0)
    if best is not None and best.fits():
        return Found(best, starts[0].relaxed.bound_ms, exchanges)
    starts = _starts(relaxations, limit_bytes)
    best, more, best_price = None, MORE_PRICES, 0.0
    bound_ms = starts[0].relaxed.bound_ms if starts else 0.0
    ms_per_byte = MEMORY_PRICE * bound_ms / limit_bytes
    for _ in range(MOST_PRICES):
        assignment = _search(starts, ms_per_byte)
        found = assignment if assignment and assignment.fits() else None
        if found and (best is None or found.step_ms() < best.step_ms()):
            best, best_price = found, ms_per_byte
        more -= best is not None
        if more < 0:
            break
        ms_per_byte *= DEARER
    if best is None:
        raise ValueError(shortage(instance, relaxations))
    return Found(best, bound_ms, exchanges, best_price)


def _searched(instance: Instance, exchange: Exchange) -> list[np.ndarray]:
    """``[candidates]`` those of all plans with an exchange; and, where there are any
    hot rows to choose, those with as few as go: with fewer candidates the search comes
    nearer to the bound, so that a choice more makes no plan longer."""
    each, allowed = instance.candidates, instance.allowed(exchange)
    fewest = np.full(len(instance.counts), np.iinfo(np.int64).max)
    np.minimum.at(fewest, each.table, each.hot_rows)
    cold = allowed & (each.hot_rows == fewest[each.table])
    return [allowed] if (cold == allowed).all() else [allowed, cold]


class Start:
    """Where searches of some candidates begin.

    Attributes:
      relaxation, relaxed: the linear program and its solution.
      limit_bytes: of memory on a device.
    """

    def __init__(self, relaxation: Relaxation, relaxed: Solution, limit_bytes: float):
        self.relaxation, self.relaxed = relaxation, relaxed
        self.limit_bytes = limit_bytes
        self.search = LocalSearch(relaxation.instance, relaxed)

    @functools.cached_property
    def choices(self) -> list[np.ndarray]:
        """Those worth a search, each ``[tables]`` candidates: of the relaxation, of the
        relaxation with crowded levels, and of whole tables, where many are alike."""
        relaxation, relaxed = self.relaxation, self.relaxed
        instance, limit_bytes = relaxation.instance, self.limit_bytes
        number = int(np.clip(GROUPS // len(instance.counts), 1, len(CROWDING)))
        solutions = [relaxed]
        for crowding in CROWDING[1:number]:
            crowded = relaxation.solve(limit_bytes, crowding=crowding)
            solutions.append(crowded or relaxed)
        if len(instance.counts) <= ALIKE * len(instance.tables):
            program = WholeProgram(relaxation, relaxed, limit_bytes)
            solution, _ = program.solve(np.inf, nodes=NODES)
            if solution.tables.any():
                solutions.append(solution)
        return [round_tables(instance, each.tables) for each in solutions]

    def place(
        self, chosen: np.ndarray, dice: np.random.Generator, ms_per_byte: float
    ) -> Assignment:
        """A plan that begins with these candidates, ``[tables]``."""
        search, memory = self.search, (self.limit_bytes, ms_per_byte)
        assignment = search.construct(chosen, ms_per_byte)
        assignment = search.improve(assignment, dice, *memory)
        assignment = search.close_storages(assignment, dice, *memory)
        return swap_shards(assignment, search.movable, *memory)


def _starts(relaxations: Sequence[Relaxation], limit_bytes: float) -> list[Start]:
    """Those of the lowest bound first; none of exchanges for which memory is short."""
    solved = [(each, each.solve(limit_bytes)) for each in relaxations]
    starts = [Start(r, s, limit_bytes) for r, s in solved if s is not None]
    return sorted(starts, key=lambda start: start.relaxed.bound_ms)


def _search(starts: Sequence[Start], ms_per_byte: float) -> Assignment | None:
    """The best of all starts at a price of memory; None if there are none."""
    best: Assignment | None = None
    for start in starts:
        if best and start.relaxed.bound_ms > best.step_ms() / PROMISING:
            continue
        for seed, chosen in enumerate(start.choices):
            dice = np.random.default_rng(seed)
            found = start.place(chosen, dice, ms_per_byte)
            limit_bytes = start.limit_bytes
            if best is None or found.rank(limit_bytes) < best.rank(limit_bytes):
                best = found
    return best


def table_bytes(instance: Instance) -> float:
    """What a device holds at least of tables and optimizer state, if each row lies on
    one device: its fair share."""
    total = sum(
        count * (use.slots or use.rows) * instance.memory.row_bytes(use.dim)
        for count, use in zip(instance.counts, instance.uses, strict=True)
    )
    return total / instance.workload.devices


def shortage(instance: Instance, relaxations: Sequence[Relaxation]) -> str:
    """What is short, by how much, where, and what would make it fit."""
    least_bytes = min(each.least_bytes() for each in relaxations)
    forced = any(force.is_fixed for force in instance.forced)
    said = instance.memory.shortage(least_bytes, table_bytes(instance), forced)
    whole = [table for table in instance.tables if not table.cached]
    if not whole:
        return said
    largest = max(whole, key=lambda table: table.rows * table.dim)
    line = f"embedding.tables.{largest.name}"
    return (
        f"{said}; or, for the largest table, device memory for some rows and host "
        f"memory or a disk for all: add {line}.tier: host (or disk)"
    )
