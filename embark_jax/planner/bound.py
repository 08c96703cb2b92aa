"""A lower bound on the step time of every plan, and the choice of shapes that it makes.

A linear program in which shards have no place: every load may be spread evenly over
the devices. Alike tables are one group, of which so many take each candidate. For each
storage there are *levels*, the most pieces, ids and rows of any device: each is at
least the mean over devices, and at least the largest shard. No plan can beat its
optimum, fractions of tables allowed. With whole numbers the bound gets tighter, and its
solution is a choice of a shape for every table.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import milp

from embark_jax.planner.candidates import Candidate
from embark_jax.planner.ledger import Ledger

PIECES, IDS, ROWS, OWNER = range(4)
"""Kinds of load: three of each storage, and the time for a device's own shards."""

RELATIVE_GAP = 5e-3
"""Between the bound and the best choice, at which whole numbers are good enough."""
NODE_LIMIT = 10
"""Of the search with whole numbers: a count, not a time, so that plans repeat."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Tables alike, and what any of them may become."""

    count: int
    candidates: Sequence[Candidate]


@dataclasses.dataclass(frozen=True)
class Relaxation:
    """Attributes:
    lower_bound: of the objective, in ms.
    counts: for each group ``[candidates]`` how many tables take each.
    """

    lower_bound: float
    counts: list[np.ndarray]


class Program:
    """The program of all tables. Its variables, one after the other: of each candidate
    how many tables take it, and whether any does; of each storage whether it is used;
    the levels; the largest shards.

    Ids count in thousands and rows in millions, to keep the numbers near each other.
    """

    def __init__(self, groups: Sequence[Group], empty: Ledger):
        """
        Args:
          groups: all tables.
          empty: an account without entries, for its storages and prices.
        """
        self.empty = empty
        self.counts = np.array([group.count for group in groups], float)
        sizes = [len(group.candidates) for group in groups]
        self.group = np.repeat(np.arange(len(groups)), sizes)
        self.candidates = [c for group in groups for c in group.candidates]
        self.storage = np.array([empty.index(c) for c in self.candidates])
        self.columns = np.array([c.shape.column_shards for c in self.candidates])
        storages = len(empty.storages)
        self.loads = 3 * storages + 1

        number = len(self.candidates)
        self.each = np.arange(number)
        self.taken = number + self.each
        self.used = 2 * number + np.arange(storages)
        self.level = 2 * number + storages + np.arange(self.loads)
        self.largest = self.level + self.loads
        self.size = 2 * number + storages + 2 * self.loads

        per_shard = [
            [
                np.full(len(c.rows), c.pieces),
                c.certain + empty.slack * c.expected,
                c.rows,
                c.owner_ms,
            ]
            for c in self.candidates
        ]
        sums = np.array([[load.sum() for load in loads] for loads in per_shard])
        tops = np.array(
            [[load.max(initial=0) for load in loads] for loads in per_shard]
        )
        self.unit = np.array([1.0, 1e3, 1e6, 1.0])
        self.total = (sums * self.columns[:, None] / self.unit).T
        self.top = (tops / self.unit).T

    def load(self, kind: int) -> np.ndarray:
        """``[candidates]`` the load of this kind that each candidate adds to."""
        storages = len(self.empty.storages)
        if kind == OWNER:
            return np.full(len(self.candidates), self.loads - 1)
        return kind * storages + self.storage

    def alone_ms(self) -> np.ndarray:
        """``[candidates]`` time of a table by itself, spread evenly."""
        price = self._prices()
        spread = [self.total[k] * price[self.load(k)] for k in range(4)]
        everywhere = np.array([c.everywhere_ms for c in self.candidates])
        return everywhere + np.sum(spread, axis=0) / self.empty.devices

    def least_bytes(self) -> float:
        """No plan takes less memory on every device."""
        found = self._solve(self._bytes(), memory=False)
        assert found is not None  # nothing else can be short
        return found.lower_bound

    def relax(self, memory: bool) -> Relaxation | None:
        """The optimum with fractions of tables; None if memory does not suffice.

        Args:
          memory: whether it is limited.
        """
        return self._solve(self._times(), memory)

    def choose(self, memory: bool, crowding: float = 0.0) -> Relaxation | None:
        """The optimum with whole tables, or what ``NODE_LIMIT`` allows.

        Args:
          memory: whether it is limited.
          crowding: levels are taken to be the mean and this share of the largest shard,
            at least. Above 0 the result bounds nothing, but its choice is easier to
            place: greedy placing ends up to one shard above the mean.
        """
        return self._solve(self._times(), memory, whole=True, crowding=crowding)

    def _solve(
        self,
        objective: np.ndarray,
        memory: bool,
        whole: bool = False,
        crowding: float = 0.0,
    ) -> Relaxation | None:
        upper = np.full(self.size, np.inf)
        upper[self.each] = self.counts[self.group]
        upper[self.taken] = upper[self.used] = 1
        integrality = np.zeros(self.size)
        if whole:
            for variables in (self.each, self.taken, self.used):
                integrality[variables] = 1
            integrality[self.level[: len(self.used)]] = 1  # pieces
        constraints = [
            (self._tables(), self.counts, self.counts),
            (self._loads(crowding, shards=whole), 0, np.inf),
        ]
        if memory:
            share = sparse.csr_matrix(self._bytes()[None] / self.empty.limit_bytes)
            constraints.append((share, -np.inf, 1.0))
        with _silence():
            found = milp(
                objective,
                integrality=integrality,
                bounds=(np.zeros(self.size), upper),
                constraints=constraints,
                options={"node_limit": NODE_LIMIT, "mip_rel_gap": RELATIVE_GAP},
            )
        if found.x is None:
            return None
        chosen = found.x[self.each]
        bound = found.mip_dual_bound if whole else found.fun
        groups = range(len(self.counts))
        return Relaxation(float(bound), [chosen[self.group == g] for g in groups])

    def _prices(self) -> np.ndarray:
        """``[loads]`` ms a unit."""
        none = np.zeros(len(self.used))
        prices = [self.empty.piece_ms, self.empty.id_ms, none]
        units = np.repeat(self.unit, [len(none)] * 3 + [1])
        return np.concatenate([*prices, [1.0]]) * units

    def _times(self) -> np.ndarray:
        cost = np.zeros(self.size)
        cost[self.each] = [c.everywhere_ms for c in self.candidates]
        cost[self.used] = self.empty.fixed_ms
        cost[self.level] = self._prices()
        return cost

    def _bytes(self) -> np.ndarray:
        empty = self.empty
        row = np.zeros(self.size)
        row[self.each] = [c.everywhere_bytes for c in self.candidates]
        per_unit = np.concatenate([empty.piece_bytes, empty.id_bytes, empty.row_bytes])
        row[self.level[:-1]] = per_unit * np.repeat(self.unit[:3], len(self.used))
        return row

    def _tables(self) -> Any:
        """Every table takes a candidate."""
        return self._matrix(len(self.counts), (self.group, self.each, 1.0))

    def _loads(self, crowding: float, shards: bool) -> Any:
        """What is to be at least zero.

        Args:
          crowding: see ``choose``.
          shards: whether a level is at least the largest shard of any candidate taken.
        """
        devices, every = self.empty.devices, np.arange(self.loads)
        crowded = np.full(self.loads, -crowding)
        crowded[: len(self.used)] = 0  # pieces are whole, and always fit
        count = self.counts[self.group]
        number = len(self.candidates)
        means = [(self.load(k), self.each, -self.total[k] / devices) for k in range(4)]
        blocks = [
            # level − mean − crowding × largest shard
            self._matrix(
                self.loads,
                *means,
                (every, self.level, 1.0),
                (every, self.largest, crowded),
            ),
            # level − largest shard
            self._matrix(
                self.loads, (every, self.level, 1.0), (every, self.largest, -1.0)
            ),
        ]
        if shards:
            # tables of the group × whether any takes it − how many do
            blocks.append(
                self._matrix(
                    number, (self.each, self.taken, count), (self.each, self.each, -1.0)
                )
            )
        for kind in range(4):
            load = self.load(kind)
            # The largest shard is at least the mean over the tables of a group,
            pairs, row = np.unique(self.group * self.loads + load, return_inverse=True)
            blocks.append(
                self._matrix(
                    len(pairs),
                    (np.arange(len(pairs)), self.largest[pairs % self.loads], 1.0),
                    (row, self.each, -self.top[kind] / count),
                )
            )
            if shards:  # and at least that of any candidate taken.
                blocks.append(
                    self._matrix(
                        number,
                        (self.each, self.largest[load], 1.0),
                        (self.each, self.taken, -self.top[kind]),
                    )
                )
        # A storage is used by at least the share of a group that lies in it.
        storages = len(self.used)
        pairs, row = np.unique(
            self.group * storages + self.storage, return_inverse=True
        )
        blocks.append(
            self._matrix(
                len(pairs),
                (np.arange(len(pairs)), self.used[pairs % storages], 1.0),
                (row, self.each, -1 / count),
            )
        )
        return sparse.vstack(blocks)

    def _matrix(self, height: int, *terms) -> Any:
        """The sum of ``(rows, columns, values)``."""
        rows = np.concatenate([row for row, _, _ in terms])
        columns = np.concatenate([column for _, column, _ in terms])
        values = [np.broadcast_to(value, np.shape(row)) for row, _, value in terms]
        shape = (height, self.size)
        entries = sparse.coo_matrix((np.concatenate(values), (rows, columns)), shape)
        return entries.tocsr()


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """HiGHS prints some lines to the process's own output, whatever its options."""
    output = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(output, 1)
        os.close(output)
        os.close(nowhere)
