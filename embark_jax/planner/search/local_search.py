"""Local search: moves of whole tables, while they lower the smooth cost.

A *move* takes a table out and inserts it anew, in the candidate and on the owners that
add least. Passes over all tables go on with ever higher powers of the smooth cost: low
ones see what all loads add up to, high ones the fullest devices. Where no move helps
any more, many tables are taken out together and inserted anew: all of one storage, or
half of all at random (https://doi.org/10.1007/0-306-48056-5_11, iterated local search).
The best assignment on the way is kept, by the true cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from embark_jax.planner.search.assignment import Assignment
from embark_jax.planner.search.insertion import Insertion, Shortlist
from embark_jax.planner.search.instance import Instance
from embark_jax.planner.search.relaxation import Solution

POWERS = (4, 16, 64, 256)
"""Powers of the smooth costs, one after the other; the last is within 128 ** (1 / 256)
= 2 % of the maximum on 128 devices."""
FIRST_POWER = 8
"""Power of the smooth cost by which tables are inserted at first."""
POWERS_AGAIN = (16, 64, 256)
"""The same of an assignment that was good but for what has changed."""
CLOSING_POWERS = (64,)
"""The same after all tables of a storage have moved."""
PASSES = 2
"""Over all tables, with each power."""
FAILURES = 2
"""Failures of alike tables in a pass, after which the others are not tried."""
MOST_CANDIDATES, FEW_CANDIDATES = 32, 8
"""Candidates of a table that are tried: those that the relaxation likes best; fewer in
a model of more unlike tables than ``MANY``."""
MANY = 64
LEAST_GAIN = 1e-5
"""Share of the cost that a move must save."""
TABLES, MOST_TIMES = 400, 16
"""How often half of all tables are taken out: so many tables in all, at most so many
times."""


class LocalSearch:
    """The moves of one instance.

    Attributes:
      instance: what is planned.
      shortlists: ``[groups]`` candidates that tables choose among.
      movable: ``[tables]`` whether the planner chooses their owners.
    """

    def __init__(self, instance: Instance, relaxed: Solution):
        """
        Args:
          instance: what is planned.
          relaxed: says which candidates are promising: those taken, and those beside
            which the bound rises least.
        """
        self.instance = instance
        free = np.array([owners is None for owners in instance.owners])
        self.movable = free[instance.group]
        each = instance.candidates
        order = np.lexsort((-relaxed.tables, relaxed.above_ms, each.table))
        first = np.searchsorted(each.table[order], np.arange(len(instance.counts)))
        last = np.append(first[1:], len(order))
        self.shortlists: list[Shortlist] = []
        self.is_large = len(instance.counts) > MANY
        most = FEW_CANDIDATES if self.is_large else MOST_CANDIDATES
        for begin, end in zip(first.tolist(), last.tolist(), strict=True):
            mine = order[begin : min(begin + most, end)]
            mine = mine[np.isfinite(relaxed.above_ms[mine])]
            self.shortlists.append(Shortlist(instance, mine))

    def construct(self, chosen: np.ndarray, ms_per_byte: float) -> Assignment:
        """Inserts all tables: those with forced owners first, then those whose row
        shards share nodes, then the largest.

        Args:
          chosen: ``[tables]`` the candidate of each.
          ms_per_byte: what memory is taken to cost.
        """
        instance, each = self.instance, self.instance.candidates
        assignment = Assignment(instance, chosen)
        insertion = Insertion(assignment, FIRST_POWER, ms_per_byte)
        shortlists = {
            c: Shortlist(instance, np.array([c])) for c in np.unique(chosen).tolist()
        }
        forced = instance.owners
        for table in np.flatnonzero(~self.movable).tolist():
            owners = forced[instance.group[table]]
            assignment.put(table, int(chosen[table]), np.asarray(owners))
        together = np.where(each.hierarchical, each.row_shards, 0)
        size = {c: insertion.best(shortlist)[0] for c, shortlist in shortlists.items()}
        sizes = np.array([size[c] for c in chosen.tolist()])
        order = np.lexsort((np.arange(len(chosen)), -sizes, -together[chosen]))
        for table in order[self.movable[order]].tolist():
            _, candidate, owners = insertion.best(shortlists[int(chosen[table])])
            insertion.put(table, candidate, owners)
        return assignment

    def improve(
        self,
        assignment: Assignment,
        dice: np.random.Generator,
        limit_bytes: float = np.inf,
        ms_per_byte: float = 0.0,
        powers: Sequence[int] = POWERS,
    ) -> Assignment:
        """The best assignment on the way of all passes.

        Args:
          assignment: where to begin; changed.
          dice: for the order of tables.
          limit_bytes: of memory on a device.
          ms_per_byte: what memory is taken to cost.
          powers: of the smooth costs.
        """
        best, best_rank = assignment.copy(), assignment.rank(limit_bytes)
        for power in powers:
            for _ in range(PASSES):
                moved = self._pass(Insertion(assignment, power, ms_per_byte), dice)
                if (now := assignment.rank(limit_bytes)) < best_rank:
                    best, best_rank = assignment.copy(), now
                if not moved:
                    break
        return best

    def close_storages(
        self,
        assignment: Assignment,
        dice: np.random.Generator,
        limit_bytes: float = np.inf,
        ms_per_byte: float = 0.0,
    ) -> Assignment:
        """Moves all tables of one storage to others, storage by storage, where that
        makes a better assignment: none would go alone while the others stay."""
        best, storage = assignment, self.instance.candidates.storage
        if self.is_large or best.rank(limit_bytes).excess_bytes:  # it gains little
            return best
        for s in np.argsort(assignment.loads.tables, kind="stable").tolist():
            tables = np.flatnonzero(storage[best.candidate] == s)
            if others := self._outside(s, tables):
                trial = self._insert_anew(best, tables, others, ms_per_byte)
                memory = limit_bytes, ms_per_byte
                trial = self.improve(trial, dice, *memory, CLOSING_POWERS)
                best = min(best, trial, key=lambda each: each.rank(limit_bytes))
        return best

    def iterate(
        self,
        assignment: Assignment,
        dice: np.random.Generator,
        limit_bytes: float = np.inf,
        ms_per_byte: float = 0.0,
    ) -> Assignment:
        """Inserts half of all tables anew, chosen at random, again and again, where
        that makes a better assignment."""
        best, movable = assignment, np.flatnonzero(self.movable)
        anew = dict(enumerate(self.shortlists))
        for _ in range(min(MOST_TIMES, TABLES // max(1, len(movable)))):
            half = dice.permutation(movable)[: (len(movable) + 1) // 2]
            trial = self._insert_anew(best, half, anew, ms_per_byte)
            memory = limit_bytes, ms_per_byte
            trial = self.improve(trial, dice, *memory, POWERS_AGAIN)
            best = min(best, trial, key=lambda each: each.rank(limit_bytes))
        return best

    def _outside(self, s: int, tables: np.ndarray) -> dict[int, Shortlist]:
        """By group, candidates of these tables in other storages than this one; none if
        one has none, or if there are no tables."""
        groups = np.unique(self.instance.group[tables]).tolist()
        mine = {g: self.shortlists[g] for g in groups}
        others = {
            g: each.only(np.flatnonzero(each.storage != s)) for g, each in mine.items()
        }
        able = self.movable[tables].all() and all(
            len(o.chosen) for o in others.values()
        )
        return others if able else {}

    def _insert_anew(
        self,
        assignment: Assignment,
        tables: np.ndarray,
        shortlists: Mapping[int, Shortlist],
        ms_per_byte: float,
    ) -> Assignment:
        """Another assignment, in which these tables were taken out together and then
        inserted one after the other, each as a candidate of its group's shortlist."""
        trial = assignment.copy()
        insertion = Insertion(trial, CLOSING_POWERS[0], ms_per_byte)
        for table in tables.tolist():
            insertion.take(table)
        for table in tables.tolist():
            shortlist = shortlists[int(self.instance.group[table])]
            insertion.put(table, *insertion.best(shortlist)[1:])
        return trial

    def _pass(self, insertion: Insertion, dice: np.random.Generator) -> bool:
        """Tries to move every table; whether any moved."""
        assignment, moved = insertion.assignment, False
        failures: Counter[tuple[int, int]] = Counter()
        cost = insertion.smooth_cost()
        for table in dice.permutation(np.flatnonzero(self.movable)).tolist():
            candidate, owners = (
                int(assignment.candidate[table]),
                assignment.owners[table],
            )
            group = int(self.instance.group[table])
            if failures[group, candidate] >= FAILURES:
                continue
            insertion.take(table)
            growth, other, devices = insertion.best(self.shortlists[group])
            after = insertion.smooth_cost() + growth
            if after < (1 - LEAST_GAIN) * cost:
                candidate, owners = other, devices
                cost, moved = after, True
            else:
                failures[group, candidate] += 1
            insertion.put(table, candidate, owners)
        return moved
