"""A lower bound on the step time of every plan, and the choice of shapes that it makes.

A linear program in which shards have no place: every load may be spread evenly over
the devices. Alike tables are one group, of which so many take each candidate. For each
storage there are *levels*, the most pieces, ids and rows of any device: each is at
least the mean over devices, and at least the largest shard. No plan can beat its
optimum, fractions of tables allowed; row shards that are added up inside nodes are
taken to lie each on another device, as the search places them. With whole numbers the
bound gets tighter, and its solution is a choice of a shape for every table.

``refine`` adds rules that a solution breaks: see ``rules``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import linprog, milp

from embark_jax.planner.candidates import Candidate
from embark_jax.planner.ledger import Ledger
from embark_jax.planner.rules import (
    IDS,
    KINDS,
    NODE_PIECES,
    OWNER,
    PIECES,
    ROWS,
    Rule,
    new_rules,
)

RELATIVE_GAP = 5e-3
"""Between the bound and the best choice, at which whole numbers are good enough."""
NODE_LIMIT = 60
"""Of the search with whole numbers: a count, not a time, so that plans repeat."""
SMALL_SHARE = 0.01
"""Of the whole time, below which a shard is not looked at."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Tables alike, and what any of them may become."""

    count: int
    candidates: Sequence[Candidate]


@dataclasses.dataclass(frozen=True)
class Relaxation:
    """Attributes:
    lower_bound: of the step, in ms.
    counts: for each group ``[candidates]`` how many tables take each.
    levels: ``[loads]`` the most of any device, in the program's units.
    with_ms: ``[candidates]`` a lower bound of plans in which a table takes it.
    """

    lower_bound: float
    counts: list[np.ndarray]
    levels: np.ndarray
    with_ms: np.ndarray


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
        self.rules: list[Rule] = []
        storages = len(empty.storages)
        self.loads = (len(KINDS) - 1) * storages + 1
        kinds = np.repeat(KINDS, [storages] * (len(KINDS) - 1) + [1])
        self.lanes = np.isin(kinds, (PIECES, NODE_PIECES))

        number = len(self.candidates)
        self.each = np.arange(number)
        self.taken = number + self.each
        self.used = 2 * number + np.arange(storages)
        self.level = 2 * number + storages + np.arange(self.loads)
        self.largest = self.level + self.loads
        self.of_rules = 2 * number + storages + 2 * self.loads

        self.per_shard = [
            [
                np.full(len(c.rows), c.pieces),
                c.certain + empty.slack * c.expected,
                c.rows,
                self._of_nodes(c),
                c.owner_ms,
            ]
            for c in self.candidates
        ]
        sums = np.array([[load.sum() for load in loads] for loads in self.per_shard])
        tops = np.array(
            [[load.max(initial=0) for load in loads] for loads in self.per_shard]
        )
        self.unit = np.array([1.0, 1e3, 1e6, 1.0, 1.0])
        self.total = (sums * self.columns[:, None] / self.unit).T
        self.top = (tops / self.unit).T
        expected = np.array([c.expected.sum() for c in self.candidates])
        self.expected = expected * self.columns / self.unit[IDS]

    @property
    def size(self) -> int:
        """How many variables there are."""
        return self.of_rules + sum(len(rule.uppers) for rule in self.rules)

    def _of_nodes(self, candidate: Candidate) -> np.ndarray:
        """Pieces of nodes, once for each device of a node."""
        gpus = self.empty.gpus_per_node
        if not candidate.shape.storage.hierarchical:
            return np.zeros(0)
        devices = gpus * candidate.shape.nodes_each(gpus)
        return np.full(devices, candidate.pieces)

    def load(self, kind: int) -> np.ndarray:
        """``[candidates]`` the load of this kind that each candidate adds to."""
        storages = len(self.empty.storages)
        if kind == OWNER:
            return np.full(len(self.candidates), self.loads - 1)
        return kind * storages + self.storage

    def alone_ms(self) -> np.ndarray:
        """``[candidates]`` time of a table by itself, spread evenly."""
        price = self.prices()
        spread = [self.total[k] * price[self.load(k)] for k in KINDS]
        everywhere = np.array([c.everywhere_ms for c in self.candidates])
        return everywhere + np.sum(spread, axis=0) / self.empty.devices

    def _large(self) -> np.ndarray:
        """``[candidates]`` whether a shard matters to the largest load of a device."""
        least_ms = [self.alone_ms()[self.group == g].min() for g in self._groups()]
        small_ms = SMALL_SHARE * float(self.counts @ least_ms)
        price = self.prices()
        top_ms = [self.top[k] * price[self.load(k)] for k in KINDS]
        return np.max(top_ms, axis=0) >= small_ms

    def _groups(self) -> range:
        return range(len(self.counts))

    def least_bytes(self) -> float:
        """No plan takes less memory on every device."""
        at_most, limits, tables, counts = self._constraints(np.inf, False, 0.0)
        bounds = np.stack([np.zeros(self.size), self._upper()], axis=1)
        return max(
            linprog(moment, at_most, limits, tables, counts, bounds).fun + fixed
            for moment, fixed in zip(self._bytes(), self.empty.fixed_bytes, strict=True)
        )

    def relax(self, limit_bytes: float) -> Relaxation | None:
        """The optimum with fractions of tables; None if memory does not suffice.

        Args:
          limit_bytes: of memory on a device, infinite for none.
        """
        at_most, limits, tables, counts = self._constraints(limit_bytes, False, 0.0)
        found = linprog(
            self._times(),
            *(at_most, limits, tables, counts),
            bounds=np.stack([np.zeros(self.size), self._upper()], axis=1),
            method="highs-ds",
        )
        if found.x is None:
            return None
        reduced_ms = np.maximum(found.lower.marginals[self.each], 0)
        return self._relaxation(found.fun, found.x, found.fun + reduced_ms)

    def choose(
        self,
        limit_bytes: float,
        relaxed: Relaxation,
        best_ms: float,
        crowding: float = 0.0,
    ) -> Relaxation | None:
        """The optimum with whole tables, or what ``NODE_LIMIT`` allows.

        Args:
          limit_bytes: of memory on a device, infinite for none.
          relaxed: the optimum with fractions.
          best_ms: of a plan; only better ones are looked for. The result's bound holds
            for those.
          crowding: levels are taken to be the mean and this share of the largest shard,
            at least. Above 0 the result bounds nothing, but its choice is easier to
            place: greedy placing ends up to one shard above the mean.
        """
        at_most, limits, tables, counts = self._constraints(limit_bytes, True, crowding)
        whole = np.ones(self.size)
        whole[self.level] = whole[self.largest] = 0
        whole[self.level[self.lanes]] = 1
        upper = self._upper()
        upper[self.each[relaxed.with_ms > best_ms]] = 0
        with _silence():
            found = milp(
                self._times(),
                integrality=whole,
                bounds=(np.zeros(self.size), upper),
                constraints=[(tables, counts, counts), (at_most, -np.inf, limits)],
                options={"node_limit": NODE_LIMIT, "mip_rel_gap": RELATIVE_GAP},
            )
        if found.x is None:
            return None
        return self._relaxation(found.mip_dual_bound, found.x, relaxed.with_ms)

    def refine(self, choice: Relaxation) -> bool:
        """Adds the rules that a solution breaks; returns whether any is new."""
        found = new_rules(self, choice)
        self.rules += found
        return bool(found)

    def _constraints(
        self, limit_bytes: float, whole: bool, crowding: float
    ) -> tuple[Any, np.ndarray, Any, np.ndarray]:
        """What is to be at most so much, and what is to be equal."""
        blocks = [-self._loads(crowding, shards=whole)]
        if whole:
            variable = self.of_rules
            for rule in self.rules:
                blocks.append(-rule.constraints(self, variable))
                variable += len(rule.uppers)
        limits = np.zeros(sum(block.shape[0] for block in blocks))
        if np.isfinite(limit_bytes):
            blocks.append(sparse.csr_matrix(self._bytes() / limit_bytes))
            limits = np.append(limits, 1 - self.empty.fixed_bytes / limit_bytes)
        return sparse.vstack(blocks).tocsr(), limits, self._tables(), self.counts

    def _upper(self) -> np.ndarray:
        """Of each variable."""
        upper = np.full(self.size, np.inf)
        upper[self.each] = self.counts[self.group]
        upper[self.taken] = upper[self.used] = 1
        upper[self.of_rules :] = [each for rule in self.rules for each in rule.uppers]
        return upper

    def _relaxation(
        self, bound: float, values: np.ndarray, with_ms: np.ndarray
    ) -> Relaxation:
        taken = values[self.each]
        counts = [taken[self.group == g] for g in self._groups()]
        return Relaxation(float(bound), counts, values[self.level], with_ms)

    def prices(self) -> np.ndarray:
        """``[loads]`` ms a unit."""
        none = np.zeros(len(self.used))
        empty = self.empty
        prices = [empty.piece_ms, empty.id_ms, none, empty.node_piece_ms]
        units = np.repeat(self.unit, [len(none)] * len(prices) + [1])
        return np.concatenate([*prices, [1.0]]) * units

    def _times(self) -> np.ndarray:
        cost = np.zeros(self.size)
        cost[self.each] = [c.everywhere_ms for c in self.candidates]
        cost[self.used] = self.empty.fixed_ms
        cost[self.level] = self.prices()
        return cost

    def _bytes(self) -> np.ndarray:
        """``[2, variables]`` memory at the two times of ``Ledger.bytes``, beside what
        is fixed. The gradients of touched rows are as many as there are places, or rows
        if those are fewer, of all tables of a storage: at least the sum over tables of
        what each has fewer of, with both spread evenly."""
        empty = self.empty
        none = np.zeros(len(self.used))
        id_bytes = empty.id_bytes + empty.place_bytes
        # Of pieces, ids, rows, and pieces of nodes.
        dense = [none, empty.id_bytes, empty.row_bytes, none]
        update = [empty.piece_bytes, id_bytes, empty.row_bytes, empty.node_piece_bytes]
        places = self.total[IDS] * self.unit[IDS]
        slots = self.total[ROWS] * self.unit[ROWS] / empty.devices
        touched_bytes = empty.touched_bytes[self.storage] * np.minimum(places, slots)
        rows = np.zeros((2, self.size))
        rows[:, self.each] = [c.everywhere_bytes for c in self.candidates]
        rows[1, self.each] += touched_bytes
        rows[:, self.level[:-1]] = np.stack(
            [np.concatenate(dense), np.concatenate(update)]
        ) * np.repeat(self.unit[:-1], len(self.used))
        return rows

    def _tables(self) -> Any:
        """Every table takes a candidate."""
        return self.matrix(len(self.counts), (self.group, self.each, 1.0))

    def _loads(self, crowding: float, shards: bool) -> Any:
        """What is to be at least zero.

        Args:
          crowding: see ``choose``.
          shards: whether a level is at least the largest shard of any candidate taken.
        """
        devices, every = self.empty.devices, np.arange(self.loads)
        crowded = np.full(self.loads, -crowding)
        crowded[self.lanes] = 0  # are whole, and always fit
        count = self.counts[self.group]
        means = [(self.load(k), self.each, -self.total[k] / devices) for k in KINDS]
        blocks = [
            # level − mean − crowding × largest shard
            self.matrix(
                self.loads,
                *means,
                (every, self.level, 1.0),
                (every, self.largest, crowded),
            ),
            # level − largest shard
            self.matrix(
                self.loads, (every, self.level, 1.0), (every, self.largest, -1.0)
            ),
        ]
        large = np.flatnonzero(self._large()) if shards else np.zeros(0, int)
        every_large = np.arange(len(large))
        if shards:
            # tables of the group × whether any takes it − how many do
            taken = (every_large, self.taken[large], count[large])
            each = (every_large, self.each[large], -1.0)
            blocks.append(self.matrix(len(large), taken, each))
        for kind in KINDS:
            load = self.load(kind)
            # The largest shard is at least the mean over the tables of a group,
            pairs, row = np.unique(self.group * self.loads + load, return_inverse=True)
            blocks.append(
                self.matrix(
                    len(pairs),
                    (np.arange(len(pairs)), self.largest[pairs % self.loads], 1.0),
                    (row, self.each, -self.top[kind] / count),
                )
            )
            if shards:  # and at least that of any candidate taken.
                largest = (every_large, self.largest[load[large]], 1.0)
                taken = (every_large, self.taken[large], -self.top[kind][large])
                blocks.append(self.matrix(len(large), largest, taken))
        # A storage is used by at least the share of a group that lies in it.
        storages = len(self.used)
        pairs, row = np.unique(
            self.group * storages + self.storage, return_inverse=True
        )
        blocks.append(
            self.matrix(
                len(pairs),
                (np.arange(len(pairs)), self.used[pairs % storages], 1.0),
                (row, self.each, -1 / count),
            )
        )
        return sparse.vstack(blocks)

    def matrix(self, height: int, *terms) -> Any:
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
