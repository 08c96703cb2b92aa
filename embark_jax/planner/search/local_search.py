"""Local search: moves of whole tables, while they lower the smooth cost.

A *move* takes a table out and inserts it anew, in the candidate and on the owners that
add least. Passes over all tables use ever higher powers of the smooth cost: low powers
see the sum of all loads, high powers the fullest devices. The best assignment on the
way is kept, by the true cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from embark_jax.planner.search import params
from embark_jax.planner.search.assignment import Assignment
from embark_jax.planner.search.insertion import Insertion, Tried
from embark_jax.planner.search.instance import Instance
from embark_jax.planner.search.relaxation import Solution

LEAST_GAIN = 1e-9
"""Share of the cost below which a gain is a rounding error."""


class LocalSearch:
    """The moves of one instance.

    Attributes:
      instance, relaxed: instance to plan, and the solution that orders candidates.
      tried: ``[groups]`` candidates that tables choose among.
      movable: ``[tables]`` whether the planner chooses their owners.
    """

    def __init__(self, instance: Instance, relaxed: Solution, tried: int):
        """
        Args:
          instance: instance to plan.
          relaxed: solution that says which candidates are promising: those taken, and
            those that raise the bound least. The one with the smallest shard is tried,
            too, since memory may be short.
          tried: number of candidates of a group that its tables choose among.
        """
        self.instance, self.relaxed = instance, relaxed
        free = np.array([owners is None for owners in instance.owners])
        self.movable = free[instance.group]
        table = instance.candidates.table
        order = np.lexsort((-relaxed.tables, relaxed.above_ms, table))
        order = order[np.isfinite(relaxed.above_ms[order])]
        first = np.searchsorted(table[order], np.arange(1, len(instance.counts)))
        self._alone: dict[int, Tried] = {}  # by candidate
        self.tried: list[Tried] = []
        for promising in np.split(order, first):
            smallest = promising[np.argmin(instance.shard_bytes[promising])]
            chosen = np.unique(np.append(promising[:tried], smallest))
            self.tried.append(Tried(instance, chosen))

    def construct(self, chosen: np.ndarray, ms_per_byte: float) -> Assignment:
        """Inserts all tables: those with forced owners first, then those whose row
        shards share nodes, then the largest.

        Args:
          chosen: ``[tables]`` the candidate of each.
          ms_per_byte: price of memory.
        """
        instance = self.instance
        assignment = Assignment(instance, chosen)
        insertion = Insertion(assignment, params.POWERS[0], ms_per_byte)
        alone = self._alone
        for c in set(chosen.tolist()) - alone.keys():
            alone[c] = Tried(instance, np.array([c]))
        forced = instance.owners
        for table in np.flatnonzero(~self.movable).tolist():
            owners = forced[instance.group[table]]
            assignment.put(table, int(chosen[table]), np.asarray(owners))
        candidates = instance.candidates
        together = np.where(candidates.staged, candidates.row_shards, 0)
        costs = {c: insertion.best(alone[c])[0] for c in set(chosen.tolist())}
        cost = np.array([costs[c] for c in chosen.tolist()])
        order = np.lexsort((np.arange(len(chosen)), -cost, -together[chosen]))
        nowhere = np.zeros(0, np.int64)
        for table in order[self.movable[order]].tolist():
            candidate, owners = int(chosen[table]), nowhere
            if candidates.shards(candidate):
                _, candidate, owners = insertion.best(alone[candidate])
            insertion.put(table, candidate, owners)
        return assignment

    def improve(
        self,
        assignment: Assignment,
        dice: np.random.Generator,
        ms_per_byte: float,
        rank: Callable[[Assignment], Any] = Assignment.rank,
    ) -> Assignment:
        """Returns the best assignment on the way of all passes.

        Args:
          assignment: assignment to begin with; it is changed.
          dice: random order of tables.
          ms_per_byte: price of memory.
          rank: the lower, the better.
        """
        best = assignment.copy()
        best_rank = rank(assignment)
        for power in params.POWERS:
            self._pass(Insertion(assignment, power, ms_per_byte), dice)
            if (moved_rank := rank(assignment)) < best_rank:
                best, best_rank = assignment.copy(), moved_rank
        return best

    def fill(self, assignment: Assignment) -> Assignment:
        """Returns the assignment with other numbers of slots. While it does not fit,
        the table gets fewer whose step grows least for the bytes. Then each cached
        table takes the next larger or smaller number, or lies on devices, while that
        fits and makes steps shorter, or row stores move less in as long a step."""
        best = assignment.copy()
        cached = np.flatnonzero(self.instance.candidates.slots[best.candidate]).tolist()
        while not best.fits():
            before = best.rank()
            prices = []
            for table in cached:
                candidate = int(best.candidate[table])
                for smaller in self._neighbours(candidate)[1]:
                    self._change(best, table, smaller)
                    after = best.rank()
                    saved_bytes = before[0] - after[0]
                    if saved_bytes > 0:
                        growth_ms = after[1] - before[1]
                        prices.append((growth_ms / saved_bytes, table, smaller))
                    self._change(best, table, candidate)
            if not prices:
                return assignment
            _, table, smaller = min(prices)
            self._change(best, table, smaller)
        improved = True
        while improved:
            improved = False
            for table in cached:
                candidate = int(best.candidate[table])
                step_ms, store_ms = best.step_ms(), best.loads.store_ms.sum()
                larger, smaller = self._neighbours(candidate)
                for other in (*larger, *smaller):
                    self._change(best, table, other)
                    growth = best.step_ms() / step_ms - 1
                    less = best.loads.store_ms.sum() < (1 - LEAST_GAIN) * store_ms
                    shorter = growth < -LEAST_GAIN or (growth <= LEAST_GAIN and less)
                    if shorter and best.fits():
                        improved = True
                        break
                    self._change(best, table, candidate)
        return best.anew()

    @staticmethod
    def _change(assignment: Assignment, table: int, candidate: int) -> None:
        """Changes the candidate of a table to another one of the same shards."""
        owners = assignment.owners[table]
        assignment.take(table)
        assignment.put(table, candidate, owners)

    def _neighbours(self, candidate: int) -> tuple[list[int], list[int]]:
        """Returns the candidate with the next larger number of slots, or else with all
        rows on devices, and that with the next smaller number, all else equal; none if
        there is none."""
        candidates = self.instance.candidates
        alike = np.ones(len(candidates), bool)
        for values in (
            candidates.table,
            candidates.cluster,
            candidates.exchange,
            candidates.row_shards,
            candidates.column_shards,
            candidates.hot_rows,
        ):
            alike &= values == values[candidate]
        # By slots; with all rows on devices, which have none, last.
        others = np.flatnonzero(alike)
        slots = candidates.slots[others]
        ordered = others[np.lexsort((slots, slots == 0))].tolist()
        index = ordered.index(candidate)
        return ordered[index + 1 : index + 2], ordered[max(0, index - 1) : index]

    def _pass(self, insertion: Insertion, dice: np.random.Generator) -> None:
        """Tries to move every table."""
        assignment = insertion.assignment
        # Where a move of a table failed, those of alike tables mostly fail, too.
        failures: Counter[tuple[int, int]] = Counter()
        cost = insertion.smooth_cost()
        for table in dice.permutation(np.flatnonzero(self.movable)).tolist():
            candidate = int(assignment.candidate[table])
            owners = assignment.owners[table]
            group = int(self.instance.group[table])
            if failures[group, candidate] >= params.FAILURES:
                continue
            insertion.take(table)
            growth, other, devices = insertion.best(self.tried[group])
            moved_cost = insertion.smooth_cost() + growth
            if moved_cost < (1 - LEAST_GAIN) * cost:
                insertion.put(table, other, devices)
                cost = moved_cost
            else:
                failures[group, candidate] += 1
                insertion.put(table, candidate, owners)
