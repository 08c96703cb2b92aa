"""A lower bound on the step time of every plan in a box, and the shapes that reach it.

A linear program in which shards have no place: every load may be spread evenly over
the devices. Alike tables are one group, of which so many take each candidate, fractions
allowed. For each storage there are *levels*, the most pieces, ids and rows of any
device: each is at least the mean over devices, and at least the largest shard. Row
shards that are added up inside nodes are taken to lie each on another device, on as few
nodes as go, as the search places them. No such plan can beat its optimum.

A *box* is a part of all plans: those with levels between two limits, made of the
candidates that are left, with no more and no fewer tables of some. The smaller it is,
the closer the bound: a shard above a level can't be in it, and of large ones no device
holds as many as their mean may ask for (``cuts``). ``tree`` takes boxes apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from embark_jax.planner.box import IDS, KINDS, TOLERANCE, Box, Solution
from embark_jax.planner.capacities import least_room
from embark_jax.planner.program import Program


def solve(program: Program, box: Box, limit_bytes: float = np.inf) -> Solution | None:
    """The least bound; None if no plan is in the box, or memory does not suffice.

    Args:
      program, box: of plans.
      limit_bytes: of memory on a device.
    """
    lines = _Lines(program, box)
    if lines.impossible:
        return None
    if np.isfinite(limit_bytes):
        lines.add_memory(program.moments(), program.empty.fixed_bytes, limit_bytes)
    found = lines.solve(lines.times())
    if found.x is None:
        return None
    tables, above_ms = np.zeros((2, len(program.candidates)))
    tables[lines.live] = found.x[lines.each]
    above_ms[lines.live] = np.maximum(found.lower.marginals[lines.each], 0)
    return Solution(float(found.fun), tables, found.x[lines.level], above_ms)


def least_bytes(program: Program) -> float:
    """No plan takes less memory on every device."""
    lines = _Lines(program, program.whole_box(), priced=False)
    limit_bytes = program.empty.limit_bytes  # as the unit of the objective
    return max(
        lines.solve(lines.memory(moment) / limit_bytes).fun * limit_bytes + fixed
        for moment, fixed in zip(
            program.moments(), program.empty.fixed_bytes, strict=True
        )
    )


class _Lines:
    """The linear program of one box. Its variables, one after the other: how many
    tables take each live candidate; of each storage whether it is used; the levels."""

    def __init__(self, program: Program, box: Box, priced: bool = True):
        """
        Args:
          program, box: what to bound.
          priced: whether loads without a price do not matter.
        """
        self.program, self.box = program, box
        low = box.low.copy()
        live = box.live & ~(
            program.top > box.high[:, None] * (1 + TOLERANCE) + TOLERANCE
        ).any(axis=0)
        used = np.zeros(program.storages)
        self.impossible = False
        for count in box.counts:
            if count.least:
                chosen = count.candidates[live[count.candidates]]
                if not len(chosen):
                    self.impossible = True
                    return
                low = np.maximum(low, program.top[:, chosen].min(axis=1))
                used[program.storage[chosen]] = 1
        self.live = np.flatnonzero(live)
        self.group = program.group[self.live]
        groups = len(np.unique(self.group))
        above = low > box.high * (1 + TOLERANCE) + TOLERANCE
        self.impossible = groups < len(program.counts) or bool(above.any())
        if self.impossible:
            return
        number, storages = len(self.live), program.storages
        self.each = np.arange(number)
        self.used = number + np.arange(storages)
        self.level = number + storages + np.arange(program.loads)
        self.size = number + storages + program.loads
        self.low = np.concatenate([np.zeros(number), used, np.minimum(low, box.high)])
        self.high = np.concatenate(
            [program.counts[self.group], np.ones(storages), box.high]
        )
        self.entries: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.limits: list[float] = []
        matters = (program.prices > 0) | np.isfinite(box.high) | (not priced)
        self._add_means(matters)
        self._add_largest(self.each, program.counts[self.group], matters)
        self._add_counts(matters)
        for cut in box.cuts:
            self._add(1, (0, self.each, cut[self.live]), limit=1.0)

    def times(self) -> np.ndarray:
        """The objective of ms."""
        program = self.program
        return np.concatenate(
            [
                program.everywhere_ms[self.live],
                program.empty.fixed_ms,
                program.prices,
            ]
        )

    def memory(self, moment: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """The objective of bytes, at one of the times of ``Program.moments``."""
        of_candidates, of_levels = moment
        unused = np.zeros(self.program.storages)
        return np.concatenate([of_candidates[self.live], unused, of_levels])

    def add_memory(
        self,
        moments: Sequence[tuple[np.ndarray, np.ndarray]],
        fixed_bytes: np.ndarray,
        limit_bytes: float,
    ) -> None:
        """Memory is limited: so are rows, which have no price, from above."""
        every = np.arange(self.size)
        for moment, fixed in zip(moments, fixed_bytes, strict=True):
            share = self.memory(moment) / limit_bytes
            self._add(1, (0, every, share), limit=1 - fixed / limit_bytes)

    def solve(self, objective: np.ndarray) -> Any:
        """By SciPy, see its ``linprog``."""
        rows, columns, values = map(np.concatenate, zip(*self.entries, strict=True))
        shape = (len(self.limits), self.size)
        group = (np.ones(len(self.each)), (self.group, self.each))
        return linprog(
            objective,
            sparse.csc_matrix((values, (rows, columns)), shape),
            self.limits,
            sparse.csc_matrix(group, (len(self.program.counts), self.size)),
            self.program.counts,
            np.stack([self.low, self.high], axis=1),
            method="highs-ds",
            options={"presolve": False},  # takes longer than it saves
        )

    def _add(self, height: int, *terms, limit: float = 0.0) -> None:
        """Sums of ``(rows, columns, values)``, to be at most ``limit``."""
        first = len(self.limits)
        for rows, columns, values in terms:
            rows, columns, values = np.broadcast_arrays(rows, columns, values)
            self.entries.append((first + rows, columns, values))
        self.limits += [limit] * height

    def _add_means(self, matters: np.ndarray) -> None:
        """A level is at least the mean, of ids with the room that they take."""
        program, box = self.program, self.box
        mean = program.mean[:, self.live]
        ids = program.load(IDS)[self.live]
        capacity = box.high[ids] * program.units[ids]
        limited = np.isfinite(capacity)
        room = np.full(len(ids), program.empty.slack)
        room[limited] = least_room(capacity[limited], program.empty.slack)
        beyond = (room - program.empty.slack) * program.expected[self.live]
        mean[ids, self.each] += beyond
        loads = np.flatnonzero(matters & mean.any(axis=1))
        row, column = np.nonzero(mean[loads])
        self._add(
            len(loads),
            (row, column, mean[loads][row, column]),
            (np.arange(len(loads)), self.level[loads], -1.0),
        )

    def _add_largest(
        self, chosen: np.ndarray, most: np.ndarray, matters: np.ndarray
    ) -> None:
        """A level is at least the mean of the largest shards over the tables of a
        group, and a storage used by at least the share of a group that lies in it.

        Args:
          chosen: live candidates.
          most: ``[chosen]`` tables of the group that take one of them.
          matters: ``[loads]``.
        """
        program, group = self.program, self.group[chosen]
        candidates = self.live[chosen]
        for kind in KINDS:
            load = program.load(kind)[candidates]
            top = program.top[load, candidates]
            here = np.flatnonzero((top > 0) & matters[load])
            top = np.maximum(top, self.low[self.level[load]])[here] / most[here]
            pairs, row = np.unique(
                group[here] * program.loads + load[here], return_inverse=True
            )
            self._add(
                len(pairs),
                (row, chosen[here], top),
                (np.arange(len(pairs)), self.level[pairs % program.loads], -1.0),
            )
        pairs, row = np.unique(
            group * program.storages + program.storage[candidates], return_inverse=True
        )
        self._add(
            len(pairs),
            (row, chosen, 1 / most),
            (np.arange(len(pairs)), self.used[pairs % program.storages], -1.0),
        )

    def _add_counts(self, matters: np.ndarray) -> None:
        place = np.full(len(self.program.candidates), -1)
        place[self.live] = self.each
        for count in self.box.counts:
            chosen = place[count.candidates]
            chosen = chosen[chosen >= 0]
            if count.least:
                self._add(1, (0, chosen, -1.0), limit=-count.least)
            if np.isfinite(count.most) and len(chosen):
                self._add(1, (0, chosen, 1.0), limit=count.most)
                most = np.full(len(chosen), count.most)
                self._add_largest(chosen, most, matters)
