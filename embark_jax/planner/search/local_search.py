"""Local search: moves of whole tables, while they lower the smooth cost.

A *move* takes a table out and inserts it anew, in the candidate and on the owners that
add least. Passes over all tables use ever higher powers of the smooth cost: low powers
see the sum of all loads, high powers the fullest devices. Where no move helps any more,
all tables in RB are taken out together and inserted anew, with equal numbers of column
shards. The best assignment on the way is kept, by the true cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

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
ANEW_POWER = 64
"""Power by which tables that were taken out together are inserted again."""
HOPEFUL = 1.3
"""Largest step after that, as a multiple of the one before, that passes may mend."""
FAILURES = 2
"""Failures of alike tables in a pass after which the others are not tried."""
MOST_CANDIDATES, FEW_CANDIDATES = 16, 8
"""Candidates of a table that are tried: the best ones of the relaxation; fewer in a
large model."""
LEAST_GAIN = 1e-5
"""Share of the cost that a move must save."""


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
        usable = order[np.isfinite(relaxed.above_ms[order])]
        self._cuts = [] if instance.is_large else _cuts(instance, usable)

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
        together = np.where(each.staged, each.row_shards, 0)
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
        shortlists: Mapping[int, Shortlist] | None = None,
    ) -> Assignment:
        """Returns the best assignment on the way of all passes.

        Args:
          assignment: assignment to begin with; it is changed.
          dice: random order of tables.
          ms_per_byte: price of memory.
          shortlists: by group, the candidates to move to; None takes
            ``self.shortlists``.
        """
        shortlists = shortlists or dict(enumerate(self.shortlists))
        best, best_rank = assignment.copy(), assignment.rank()
        for power in LARGE_POWERS if self.instance.is_large else POWERS:
            self._pass(Insertion(assignment, power, ms_per_byte), dice, shortlists)
            if (now := assignment.rank()) < best_rank:
                best, best_rank = assignment.copy(), now
        return best

    def recut(
        self, best: Assignment, dice: np.random.Generator, ms_per_byte: float = 0.0
    ) -> Assignment:
        """Gives all tables in RB the same number of column shards, one number after the
        other, where that makes a better assignment. No table would change alone, since
        shards of another width lie in another storage, with exchanges of its own."""
        pooled = self.instance.candidates.pooled
        group = self.instance.group
        for shortlists in self._cuts:
            mine = pooled[best.candidate] & np.isin(group, [*shortlists])
            tables = np.flatnonzero(mine & self.movable).tolist()
            trial = best.copy()
            insertion = Insertion(trial, ANEW_POWER, ms_per_byte)
            for table in tables:
                insertion.take(table)
            for table in tables:
                shortlist = shortlists[int(group[table])]
                insertion.put(table, *insertion.best(shortlist)[1:])
            if trial.step_ms() <= HOPEFUL * best.step_ms():
                offered = dict(enumerate(self.shortlists)) | shortlists
                trial = self.improve(trial, dice, ms_per_byte, offered)
                best = min(best, trial, key=Assignment.rank)
        return best

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


def _cuts(instance: Instance, usable: np.ndarray) -> list[dict[int, Shortlist]]:
    """Returns, for each number of column shards and by group, some candidates in RB
    with this number, and in other clusters.

    Args:
      instance: instance to plan.
      usable: numbers of candidates, the promising ones of each group first.
    """
    each = instance.candidates
    pooled = each.pooled[usable]
    columns, group = each.column_shards[usable], each.table[usable]
    found = []
    for number in np.unique(columns[pooled]).tolist():
        cut = pooled & (columns == number)
        found.append(
            {
                g: Shortlist(
                    instance,
                    np.concatenate(
                        [
                            usable[kind & (group == g)][:FEW_CANDIDATES]
                            for kind in (cut, ~pooled)
                        ]
                    ),
                )
                for g in np.unique(group[cut]).tolist()
            }
        )
    return found
