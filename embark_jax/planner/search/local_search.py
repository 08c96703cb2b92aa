"""Local search: moves of whole tables, while they lower the smooth cost.

A *move* takes a table out and inserts it anew, in the candidate and on the owners that
add least. Passes over all tables use ever higher powers of the smooth cost: low powers
see the sum of all loads, high powers the fullest devices. The best assignment on the
way is kept, by the true cost.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from embark_jax.planner.search.assignment import Assignment
from embark_jax.planner.search.insertion import Insertion, Shortlist
from embark_jax.planner.search.instance import Instance
from embark_jax.planner.search.relaxation import Solution

LEAST_GAIN = 1e-9
"""Share of the cost below which a gain is a rounding error."""


class LocalSearch:
    """The moves of one instance.

    Attributes:
      instance: instance to plan.
      shortlists: ``[groups]`` candidates that tables choose among.
      movable: ``[tables]`` whether the planner chooses their owners.
    """

    def __init__(self, instance: Instance, relaxed: Solution):
        """
        Args:
          instance: instance to plan.
          relaxed: solution that says which candidates are promising: those taken, and
            those that raise the bound least. The one with the smallest shard is tried,
            too, since memory may be short.
        """
        self.instance = instance
        free = np.array([owners is None for owners in instance.owners])
        self.movable = free[instance.group]
        table = instance.candidates.table
        order = np.lexsort((-relaxed.tables, relaxed.above_ms, table))
        order = order[np.isfinite(relaxed.above_ms[order])]
        first = np.searchsorted(table[order], np.arange(1, len(instance.counts)))
        self.shortlists: list[Shortlist] = []
        for promising in np.split(order, first):
            smallest = promising[np.argmin(instance.shard_bytes[promising])]
            shortest = promising[: instance.params.shortlist]
            chosen = np.unique(np.append(shortest, smallest))
            self.shortlists.append(Shortlist(instance, chosen))

    def construct(self, chosen: np.ndarray, ms_per_byte: float) -> Assignment:
        """Inserts all tables: those with forced owners first, then those whose row
        shards share nodes, then the largest.

        Args:
          chosen: ``[tables]`` the candidate of each.
          ms_per_byte: price of memory.
        """
        instance = self.instance
        assignment = Assignment(instance, chosen)
        insertion = Insertion(assignment, instance.params.powers[0], ms_per_byte)
        shortlists = {
            c: Shortlist(instance, np.array([c])) for c in np.unique(chosen).tolist()
        }
        forced = instance.owners
        for table in np.flatnonzero(~self.movable).tolist():
            owners = forced[instance.group[table]]
            assignment.put(table, int(chosen[table]), np.asarray(owners))
        candidates = instance.candidates
        together = np.where(candidates.staged, candidates.row_shards, 0)
        costs = {c: insertion.best(shortlist)[0] for c, shortlist in shortlists.items()}
        cost = np.array([costs[c] for c in chosen.tolist()])
        order = np.lexsort((np.arange(len(chosen)), -cost, -together[chosen]))
        for table in order[self.movable[order]].tolist():
            _, candidate, owners = insertion.best(shortlists[int(chosen[table])])
            insertion.put(table, candidate, owners)
        return assignment

    def improve(
        self,
        assignment: Assignment,
        dice: np.random.Generator,
        ms_per_byte: float = 0.0,
    ) -> Assignment:
        """Returns the best assignment on the way of all passes.

        Args:
          assignment: assignment to begin with; it is changed.
          dice: random order of tables.
          ms_per_byte: price of memory.
        """
        best = assignment.copy()
        best_rank = assignment.rank()
        for power in self.instance.params.powers:
            self._pass(Insertion(assignment, power, ms_per_byte), dice)
            rank = assignment.rank()
            if rank < best_rank:
                best = assignment.copy()
                best_rank = rank
        return best

    def fill(self, assignment: Assignment) -> Assignment:
        """Returns the assignment with other numbers of slots: each cached table takes
        the next larger or smaller number in turn, while steps get shorter and fit."""
        best = assignment.copy()
        candidates = self.instance.candidates
        cached = np.flatnonzero(candidates.slots[best.candidate])
        improved = True
        while improved:
            improved = False
            for table in cached.tolist():
                candidate, owners = int(best.candidate[table]), best.owners[table]
                for other in self._neighbours(candidate):
                    rank = best.rank()
                    best.take(table)
                    best.put(table, other, owners)
                    if best.rank() < rank:
                        improved = True
                        break
                    best.take(table)
                    best.put(table, candidate, owners)
        return best.copy()

    def _neighbours(self, candidate: int) -> list[int]:
        """Returns the candidates with the next larger and the next smaller number of
        slots, all else equal."""
        candidates = self.instance.candidates
        alike = candidates.slots > 0
        for values in (
            candidates.table,
            candidates.storage,
            candidates.row_shards,
            candidates.hot_rows,
        ):
            alike &= values == values[candidate]
        others = np.flatnonzero(alike)
        others = others[np.argsort(candidates.slots[others])]
        index = int(
            np.searchsorted(candidates.slots[others], candidates.slots[candidate])
        )
        return [*others[index + 1 : index + 2], *others[max(0, index - 1) : index]]

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
            if failures[group, candidate] >= self.instance.params.failures:
                continue
            insertion.take(table)
            growth, other, devices = insertion.best(self.shortlists[group])
            moved_cost = insertion.smooth_cost() + growth
            if moved_cost < (1 - LEAST_GAIN) * cost:
                insertion.put(table, other, devices)
                cost = moved_cost
            else:
                failures[group, candidate] += 1
                insertion.put(table, candidate, owners)
