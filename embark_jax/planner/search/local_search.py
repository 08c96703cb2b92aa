"""Local search: moves of whole tables, while they lower the smooth cost.

A *move* takes a table out and inserts it anew, in the candidate and on the owners that
add least. Passes over all tables use ever higher powers of the smooth cost: low powers
see the sum of all loads, high powers the fullest devices. Where no move helps any more,
many tables are taken out together and inserted anew: all of one storage, those in RB
with equal numbers of column shards, or half of all at random (iterated local search,
https://doi.org/10.1007/0-306-48056-5_11). The best assignment on the way is kept, by
the true cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from embark_jax.planner.cost.candidates import CLUSTERS
from embark_jax.planner.search.assignment import Assignment
from embark_jax.planner.search.insertion import Insertion, Shortlist
from embark_jax.planner.search.instance import Instance
from embark_jax.planner.search.relaxation import Solution

POWERS = (4, 16, 64, 256)
"""Powers of the smooth costs, one after the other; the last is within 128 ** (1 / 256)
= 2 % of the maximum on 128 devices."""
LARGE_POWERS = (2, 4, 16, 256)
"""Powers for a large model: where many devices are near the fullest, only low powers
show that it helps to unload one."""
FIRST_POWER = 8
"""Power of the smooth cost by which tables are inserted at first."""
POWERS_AGAIN = (16, 64, 256)
"""Powers for an assignment that was good except for what has changed."""
ANEW_POWER = 64
"""Power by which tables that were taken out together are inserted again."""
FAILURES = 2
"""Failures of alike tables in a pass after which the others are not tried."""
MOST_CANDIDATES, FEW_CANDIDATES = 16, 8
"""Candidates of a table that are tried: the best ones of the relaxation; fewer in a
large model."""
LEAST_GAIN = 1e-5
"""Share of the cost that a move must save."""
TABLES, MOST_TIMES = 400, 4
"""Limits on how often half of all tables are taken out: number of tables in all, and
number of times."""


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
        each = instance.candidates
        order = np.lexsort((-relaxed.tables, relaxed.above_ms, each.table))
        first = np.searchsorted(each.table[order], np.arange(len(instance.counts)))
        last = np.append(first[1:], len(order))
        self.shortlists: list[Shortlist] = []
        most = FEW_CANDIDATES if instance.is_large else MOST_CANDIDATES
        for begin, end in zip(first.tolist(), last.tolist(), strict=True):
            able = order[begin:end]
            able = able[np.isfinite(relaxed.above_ms[able])]
            smallest = able[np.argmin(instance.shard_bytes[able])]
            mine = np.unique(np.append(able[:most], smallest))
            self.shortlists.append(Shortlist(instance, mine))
        # With many unlike tables, the additional searches would take too long.
        usable = np.isfinite(relaxed.above_ms)
        self._cuts = [] if instance.is_large else _cuts(instance, order, usable)

    def construct(self, chosen: np.ndarray, ms_per_byte: float) -> Assignment:
        """Inserts all tables: those with forced owners first, then those whose row
        shards share nodes, then the largest.

        Args:
          chosen: ``[tables]`` the candidate of each.
          ms_per_byte: price of memory.
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
        ms_per_byte: float = 0.0,
        powers: Sequence[int] = (),
        shortlists: Mapping[int, Shortlist] | None = None,
    ) -> Assignment:
        """Returns the best assignment on the way of all passes.

        Args:
          assignment: assignment to begin with; it is changed.
          dice: random order of tables.
          ms_per_byte: price of memory.
          powers: powers of the smooth costs; by default those of a first search.
          shortlists: by group, the candidates to move to; None takes
            ``self.shortlists``.
        """
        powers = powers or (LARGE_POWERS if self.instance.is_large else POWERS)
        shortlists = shortlists or dict(enumerate(self.shortlists))
        best, best_rank = assignment.copy(), assignment.rank()
        for power in powers:
            self._pass(Insertion(assignment, power, ms_per_byte), dice, shortlists)
            if (now := assignment.rank()) < best_rank:
                best, best_rank = assignment.copy(), now
        return best

    def recut(
        self,
        assignment: Assignment,
        dice: np.random.Generator,
        ms_per_byte: float = 0.0,
    ) -> Assignment:
        """Gives all tables in RB the same number of column shards, one number after the
        other, where that makes a better assignment. No table would change alone, since
        shards of another width lie in another storage, with exchanges of its own."""
        best, each = assignment, self.instance.candidates
        group = self.instance.group
        for shortlists in self._cuts:
            pooled = each.cluster[best.candidate] == CLUSTERS.index("rb")
            tables = np.flatnonzero(
                pooled & self.movable & np.isin(group, [*shortlists])
            )
            offered = dict(enumerate(self.shortlists)) | shortlists
            how = dice, ms_per_byte, POWERS, offered
            best = self._insert_anew(best, tables, shortlists, *how)
        return best

    def close_storages(
        self,
        assignment: Assignment,
        dice: np.random.Generator,
        ms_per_byte: float = 0.0,
    ) -> Assignment:
        """Moves all tables of one storage to others, storage by storage, where that
        makes a better assignment. No table would move alone while the others stay."""
        best, storage = assignment, self.instance.candidates.storage
        if self.instance.is_large or not best.fits():  # the moves gain little
            return best
        for s in np.argsort(assignment.loads.tables, kind="stable").tolist():
            tables = np.flatnonzero(storage[best.candidate] == s)
            if others := self._outside(s, tables):
                how = dice, ms_per_byte, (ANEW_POWER,)
                best = self._insert_anew(best, tables, others, *how)
        return best

    def iterate(
        self,
        assignment: Assignment,
        dice: np.random.Generator,
        ms_per_byte: float = 0.0,
    ) -> Assignment:
        """Inserts half of all tables anew, chosen at random, again and again, where
        that makes a better assignment."""
        best, movable = assignment, np.flatnonzero(self.movable)
        anew = dict(enumerate(self.shortlists))
        for _ in range(min(MOST_TIMES, TABLES // max(1, len(movable)))):
            half = dice.permutation(movable)[: (len(movable) + 1) // 2]
            how = dice, ms_per_byte, POWERS_AGAIN
            best = self._insert_anew(best, half, anew, *how)
        return best

    def _outside(self, s: int, tables: np.ndarray) -> dict[int, Shortlist]:
        """Returns by group the candidates of these tables outside of storage ``s``;
        none if one table has none, or if there are no tables."""
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
        dice: np.random.Generator,
        ms_per_byte: float,
        powers: Sequence[int],
        offered: Mapping[int, Shortlist] | None = None,
    ) -> Assignment:
        """Returns the better one of two assignments: this one, and another in which
        these tables were taken out together, then inserted one after the other, each as
        a candidate of its group's shortlist, and then improved.

        Args:
          assignment, tables, shortlists: see above.
          dice, ms_per_byte, powers: as in ``improve``.
          offered: ``shortlists`` of ``improve``.
        """
        trial = assignment.copy()
        insertion = Insertion(trial, ANEW_POWER, ms_per_byte)
        for table in tables.tolist():
            insertion.take(table)
        for table in tables.tolist():
            shortlist = shortlists[int(self.instance.group[table])]
            insertion.put(table, *insertion.best(shortlist)[1:])
        trial = self.improve(trial, dice, ms_per_byte, powers, offered)
        return min(assignment, trial, key=Assignment.rank)

    def _pass(
        self,
        insertion: Insertion,
        dice: np.random.Generator,
        shortlists: Mapping[int, Shortlist],
    ) -> None:
        """Tries to move every table."""
        assignment = insertion.assignment
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
            growth, other, devices = insertion.best(shortlists[group])
            after = insertion.smooth_cost() + growth
            if after < (1 - LEAST_GAIN) * cost:
                candidate, owners = other, devices
                cost = after
            else:
                failures[group, candidate] += 1
            insertion.put(table, candidate, owners)


def _cuts(
    instance: Instance, order: np.ndarray, usable: np.ndarray
) -> list[dict[int, Shortlist]]:
    """Returns, for each number of column shards and by group, the candidates in RB with
    this number, and those in other clusters.

    Args:
      instance: instance to plan.
      order: numbers of candidates, the promising ones of each group first.
      usable: ``[candidates]`` whether each may be taken.
    """
    each = instance.candidates
    pooled = each.cluster == CLUSTERS.index("rb")
    order = order[usable[order]]
    groups = [order[each.table[order] == g] for g in range(len(instance.counts))]
    found = []
    for columns in np.unique(each.column_shards[pooled & usable]).tolist():
        cut = pooled & (each.column_shards == columns)
        found.append({})
        for g, mine in enumerate(groups):
            kept = [
                mine[cut[mine]][:FEW_CANDIDATES],
                mine[~pooled[mine]][:FEW_CANDIDATES],
            ]
            if len(kept[0]):
                found[-1][g] = Shortlist(instance, np.concatenate(kept))
    return found
