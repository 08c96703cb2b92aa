"""The search for a plan, from beginning to end: relaxation, rounding, local search."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from embark_jax.planner.search.assignment import Assignment
from embark_jax.planner.search.instance import Instance
from embark_jax.planner.search.local_search import LocalSearch
from embark_jax.planner.search.relaxation import Relaxation, Solution
from embark_jax.planner.search.rounding import round_tables
from embark_jax.planner.search.whole_program import WholeProgram

CROWDING = (0.0, 0.5, 1.0, 0.25, 0.75, 1.5, 0.375, 0.625)
"""Crowding of the relaxations whose roundings are improved (``Relaxation.solve``)."""
GROUPS = 120
"""Groups of alike tables in all roundings together; models with more groups have fewer
roundings improved."""
ALIKE = 0.1
"""Largest number of groups for each table at which whole tables are solved for."""
FEW_CANDIDATES = 150
"""Largest number of candidates at which this solver takes no longer than the rest."""
NODES = 20
"""Nodes of the solver's tree: a count, not a time, so that plans repeat."""
PROMISING = 1.02
"""A start is searched if its bound times this factor is at most the best step."""
MEMORY_PRICE, DEARER = 0.1, 2.0
"""Price of all memory at first where it is short, in step times, and the factor of the
price from one search to the next."""
LARGE_PRICE = 0.4
"""First price of memory in a large model, in step times."""
MOST_PRICES, MORE_PRICES = 13, 2
"""Number of searches, and of those after the first whose plan fits, where a faster plan
does not: a higher price may make it fit."""


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """The result of a search.

    Attributes:
      assignment: best assignment.
      bound_ms: bound: no plan takes less.
      ms_per_byte: price of memory at which it was found.
    """

    assignment: Assignment
    bound_ms: float
    ms_per_byte: float = 0.0


def solve(instance: Instance) -> Found:
    """Returns the best plan of a search, and the bound.

    Args:
      instance: instance to plan.

    Raises:
      ValueError: if the tables do not fit.
    """
    enough = table_bytes(instance) <= instance.memory.limit_bytes
    if enough and (found := _search(instance)):
        return found
    raise ValueError(shortage(instance))


def _search(instance: Instance) -> Found | None:
    """Returns the best plan of all starts, that of the lowest bound first, if any fits;
    for a large model that of the first start that has one."""
    relaxations = [Relaxation(instance, allowed) for allowed in searched(instance)]
    starts = [
        Start(relaxation, relaxed)
        for relaxation in relaxations
        if (relaxed := relaxation.solve())
    ]
    starts.sort(key=lambda start: start.relaxed.bound_ms)
    best: Found | None = None
    for start in starts:
        promising_ms = start.relaxed.bound_ms * PROMISING
        if best and (instance.is_large or promising_ms > best.assignment.step_ms()):
            break
        found = start.search_plan()
        if found and (
            not best or found.assignment.step_ms() < best.assignment.step_ms()
        ):
            best = found
    if not best:
        return None
    return dataclasses.replace(best, bound_ms=starts[0].relaxed.bound_ms)


def searched(instance: Instance) -> list[np.ndarray]:
    """Returns ``[candidates]`` masks of the candidates that each search chooses among.
    On several nodes all tables in RB have one exchange, rather than both in one plan;
    and where hot rows can be chosen, one search has as few as possible, unless the
    model is large. A search with fewer candidates comes nearer to the bound, so that
    one more choice makes no plan longer. A candidate is in no mask if one of its shards
    does not fit."""
    each = instance.candidates
    fixed = np.array([force.exchange is not None for force in instance.forced])
    free = each.pooled & ~fixed[each.table]
    fits = instance.shard_bytes <= instance.memory.limit_bytes
    fewest = np.full(len(instance.counts), np.iinfo(np.int64).max)
    np.minimum.at(fewest, each.table, each.hot_rows)
    cold = each.hot_rows == fewest[each.table]
    exchanges = np.unique(each.staged[free]) if free.any() else [False]
    masks = [
        ~(free & (each.staged != exchange)) & (cold | hot) & fits
        for exchange in exchanges
        for hot in ((True,) if instance.is_large else (True, False))
    ]
    groups = len(instance.counts)
    return [
        mask
        for mask in np.unique(masks, axis=0)
        if len(np.unique(each.table[mask])) == groups
    ]


class Start:
    """The start of searches among some candidates.

    Attributes:
      relaxation, relaxed: the linear program and its solution.
    """

    def __init__(self, relaxation: Relaxation, relaxed: Solution):
        self.relaxation, self.relaxed = relaxation, relaxed

    @functools.cached_property
    def search(self) -> LocalSearch:
        return LocalSearch(self.relaxation.instance, self.relaxed)

    @functools.cached_property
    def choices(self) -> list[np.ndarray]:
        """Returns the roundings worth a search, each ``[tables]`` candidates: of the
        relaxation, of relaxations with crowded peaks, and of whole tables, where many
        are alike."""
        instance, solutions = self.relaxation.instance, [self.relaxed]
        number = int(np.clip(GROUPS // len(instance.counts), 1, len(CROWDING)))
        for crowding in CROWDING[1:number]:
            solutions.append(self.relaxation.solve(crowding=crowding) or self.relaxed)
        few = len(self.relaxation.live) <= FEW_CANDIDATES
        if few and len(instance.counts) <= ALIKE * len(instance.tables):
            program = WholeProgram(self.relaxation, self.relaxed)
            solution, _ = program.solve(np.finfo(float).max, nodes=NODES)
            if solution.tables.any():
                solutions.append(solution)
        return [round_tables(instance, each.tables) for each in solutions]

    def search_plan(self) -> Found | None:
        """Returns the best plan that fits, if any is found.

        Where memory is short it gets a price, which rises from nothing until a plan
        fits: the fullest device counts for all, and only whole plans show how full it
        is. A large model hardly fits without a price, and must do with one plan.
        """
        instance = self.relaxation.instance
        of_all = self.relaxed.bound_ms / instance.memory.limit_bytes
        best, more, ms_per_byte = None, MORE_PRICES, 0.0
        if instance.is_large:
            more, ms_per_byte = 0, LARGE_PRICE * of_all
        for _ in range(MOST_PRICES):
            placed = [
                self.place(chosen, np.random.default_rng(seed), ms_per_byte)
                for seed, chosen in enumerate(self.choices)
            ]
            short = not min(placed, key=Assignment.step_ms).fits()
            found = min(placed, key=Assignment.rank)
            found = self.search.recut(found, np.random.default_rng(0), ms_per_byte)
            if found.fits() and (
                best is None or found.step_ms() < best.assignment.step_ms()
            ):
                best = Found(found, self.relaxed.bound_ms, ms_per_byte)
            if best and not (short and more):
                break
            more -= best is not None
            ms_per_byte = DEARER * ms_per_byte or MEMORY_PRICE * of_all
        return best

    def place(
        self, chosen: np.ndarray, dice: np.random.Generator, ms_per_byte: float = 0.0
    ) -> Assignment:
        """Returns a plan that begins with these candidates, ``[tables]``."""
        found = self.search.construct(chosen, ms_per_byte)
        return self.search.improve(found, dice, ms_per_byte)


def table_bytes(instance: Instance) -> float:
    """Returns a device's least bytes of tables and optimizer state, if each row lies on
    one device: its fair share."""
    total = sum(
        count
        * (use.slots or use.rows)
        * instance.memory.row_bytes(use.dim, use.value_bytes)
        for count, use in zip(instance.counts, instance.uses, strict=True)
    )
    return total / instance.workload.devices


def shortage(instance: Instance) -> str:
    """Says what is short, by how much, where, and what would make it fit."""
    forced = any(force.is_fixed for force in instance.forced)
    least_bytes = Relaxation(instance).least_bytes()
    said = instance.memory.shortage(least_bytes, table_bytes(instance), forced)
    whole = [table for table in instance.tables if not table.cached]
    if not whole:
        return said
    largest = max(whole, key=lambda table: table.rows * table.dim)
    line = f"embedding.tables.{largest.name}"
    return (
        f"{said}; or, in a config, for the largest table, device memory for some rows "
        f"and host memory or a disk for all: add {line}.tier: host (or disk)"
    )
