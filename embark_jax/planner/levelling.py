"""Levels devices: deals row shards unequal loads, so that the fullest device has less.

A plan places whole shards, which seldom fill all devices alike. But how often a row
shard is looked up is the planner's to choose (``dealing``): a table of several row
shards can have more of its hot rows on an emptier device. How much of each table goes
where is a linear program, whose variables are what shares grow or shrink by.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from embark_jax.planner.candidates import Candidate, weigh
from embark_jax.planner.cost import CostModel
from embark_jax.planner.memory import Memory
from embark_jax.planner.placing import Placing
from embark_jax.planner.rounding import rounded
from embark_jax.planner.storage import EVEN_LOAD
from embark_jax.planner.workload import Workload

LEAST_LOAD, MOST_LOAD = 0.5, 2.0
"""Times its load, dealt evenly, that a row shard takes: as far as a plan relies on it
that ids follow frequency."""
FIXED = 0.99
"""Of that load, from which on there is nothing to deal."""
ROUNDS = 2
"""Of dealing; the second corrects what whole rows made of the first."""
CHANGE_PRICE = 1e-5
"""Step times for a table's whole load to change: of equal plans, that with the most
even row shards."""
TILT = 200
"""Thousandths by which loads change to see what owners' time makes of it."""
IDS_UNIT = 1e3
"""Ids count in thousands, to keep the numbers near each other."""


class Levelling:
    """Of the plans for one workload, by one cost model."""

    def __init__(self, workload: Workload, model: CostModel, memory: Memory):
        self.workload, self.model, self.memory = workload, model, memory
        self._flexible: dict[Candidate, _Flexible | None] = {}

    def step_ms(self, placing: Placing) -> float:
        """About what a step takes when devices are levelled; no more than as it is."""
        levelled = self._levelled(placing, placing.candidates)
        before_ms = placing.ledger.step_ms()
        return min(before_ms, levelled.step_ms) if levelled else before_ms

    def level(self, placing: Placing) -> None:
        """Deals row shards such loads, as far as that makes a better plan that fits."""
        even, best = list(placing.candidates), placing.entries()
        best_ms = placing.ledger.step_ms()
        for _ in range(ROUNDS):
            levelled = self._levelled(placing, even)
            for i, change in levelled.changes.items() if levelled else ():
                dealt = self._dealt(placing.candidates[i], change)
                owners = placing.owners[i]
                placing.take(i)
                placing.put(i, dealt, owners)
            fits = placing.ledger.bytes() <= self.memory.limit_bytes
            if fits and placing.ledger.step_ms() < best_ms:
                best, best_ms = placing.entries(), placing.ledger.step_ms()
        placing.enter(best)

    def _levelled(self, placing: Placing, even: list[Candidate]) -> _Levelled | None:
        """None if no table has row shards that may be dealt other loads.

        Args:
          placing: a plan.
          even: candidates of its tables, with loads dealt evenly.
        """
        flexible = {i: self._flexibility(candidate) for i, candidate in enumerate(even)}
        found = {i: each for i, each in flexible.items() if each is not None}
        return _Levelled(placing, found) if found else None

    def _dealt(self, candidate: Candidate, change: np.ndarray) -> Candidate:
        """With other shares of the table's ids.

        Args:
          candidate: dealt before.
          change: ``[row_shards]`` of shares.
        """
        shape, whole = candidate.shape, EVEN_LOAD * candidate.shape.row_shards
        loads = np.array(shape.row_loads or whole * _shares(candidate))
        row_loads = tuple(rounded(loads + whole * change, whole).tolist())
        shape = dataclasses.replace(shape, row_loads=row_loads)
        return weigh(shape, self.workload, self.model, self.memory)

    def _flexibility(self, even: Candidate) -> _Flexible | None:
        """None if its loads cannot be dealt otherwise."""
        if even not in self._flexible:
            fixed = even.replicated or even.certain.any()
            kept = None if fixed else even.shape.kept_loads(self.workload)
            self._flexible[even] = None
            if kept is not None and kept.min() < FIXED:
                shares = _shares(even)
                self._flexible[even] = _Flexible(
                    least=shares * np.maximum(kept, LEAST_LOAD),
                    most=shares * MOST_LOAD,
                    own_ms=self._own_ms(even),
                )
        return self._flexible[even]

    def _own_ms(self, even: Candidate) -> float:
        """Owner's time for all ids of a table, so far as it depends on their number:
        seen from what it changes by when loads do."""
        tilt = np.zeros(even.shape.row_shards, int)
        tilt[0], tilt[-1] = TILT, -TILT
        row_loads = tuple((EVEN_LOAD + tilt).tolist())
        tilted = dataclasses.replace(even.shape, row_loads=row_loads)
        _, expected = tilted.sent_ids(self.workload)
        change = (expected - even.expected) / even.expected.sum()
        more_ms = self.model.owner_ms(tilted) - even.owner_ms
        return max(0.0, float(change @ more_ms)) / max(float(change @ change), 1e-30)


class _Flexible(NamedTuple):
    """What a table's row shards may be dealt.

    Attributes:
      least, most: ``[row_shards]`` shares of the table's ids.
      own_ms: owner's time for a share of 1, so far as it depends on the share.
    """

    least: np.ndarray
    most: np.ndarray
    own_ms: float


class _Levelled:
    """The best changes of the shares of some tables.

    Attributes:
      changes: ``[row_shards]`` of each table, by its number.
      step_ms: with them.
    """

    def __init__(self, placing: Placing, flexible: dict[int, _Flexible]):
        """
        Args:
          placing: a plan.
          flexible: tables by their number, whose shares may change.
        """
        ledger = placing.ledger
        chosen = [placing.candidates[i] for i in flexible]
        least, most, own_ms = zip(*flexible.values(), strict=True)
        sizes = [len(candidate.rows) for candidate in chosen]
        table = np.repeat(np.arange(len(chosen)), sizes)
        share = np.concatenate([*map(_shares, chosen)])
        shrink = np.maximum(share - np.concatenate(least), 0.0)
        grow = np.maximum(np.concatenate(most) - share, 0.0)
        # Of each shard: an owner of each column has the same share.
        columns = np.repeat([c.shape.column_shards for c in chosen], sizes)
        row_shard = np.repeat(np.arange(len(table)), columns)
        owner = np.concatenate([placing.owners[i] for i in flexible])
        storage = np.array([ledger.index(c) for c in chosen])[table[row_shard]]
        ids = np.array([c.expected.sum() for c in chosen])[table[row_shard]]
        ms = np.array(own_ms)[table[row_shard]]

        # Levels are the places for ids of each storage, and the owner's time.
        levels = len(ledger.storages) + 1
        held_ids = ledger.padded_ids(ledger.certain, ledger.expected)
        held = np.append(held_ids.reshape(-1) / IDS_UNIT, ledger.owner_ms)
        of_ids, of_owner = (
            level * ledger.devices + owner for level in (storage, levels - 1)
        )
        more = sparse.csc_matrix(
            (
                np.append(ledger.slack * ids / IDS_UNIT, ms),
                (np.append(of_ids, of_owner), np.tile(row_shard, 2)),
            ),
            (levels * ledger.devices, len(table)),
        )
        change = _best_change(
            *(table, shrink, grow, held, more),
            level_ms=np.append(IDS_UNIT * ledger.id_ms, 1.0),
            change_ms=CHANGE_PRICE * ledger.step_ms(),
        )
        each = np.split(change, np.cumsum(sizes)[:-1])
        self.changes = dict(zip(flexible, each, strict=True))
        expected, owner_ms = ledger.expected.copy(), ledger.owner_ms.copy()
        np.add.at(expected, (storage, owner), ids * change[row_shard])
        np.add.at(owner_ms, owner, ms * change[row_shard])
        capacity = ledger.padded_ids(ledger.certain, expected).max(axis=1)
        saved_ms = ledger.id_ms @ (ledger.capacity - capacity)
        saved_ms += ledger.owner_ms.max() - owner_ms.max()
        self.step_ms = ledger.step_ms() - float(saved_ms)


def _best_change(
    table: np.ndarray,
    shrink: np.ndarray,
    grow: np.ndarray,
    held: np.ndarray,
    more: sparse.csc_matrix,
    level_ms: np.ndarray,
    change_ms: float,
) -> np.ndarray:
    """``[row_shards]`` of shares, that makes levels cheapest.

    Args:
      table: ``[row_shards]`` whose they are; its shares keep their sum.
      shrink, grow: ``[row_shards]`` by how much each may.
      held: ``[levels * devices]`` loads of each device.
      more: ``[levels * devices, row_shards]`` what comes to them with a share of 1.
      level_ms: ``[levels]`` of a unit of the fullest device.
      change_ms: of a share of 1 that changes.
    """
    number, tables, levels = len(table), int(table.max()) + 1, len(level_ms)
    devices = len(held) // levels
    fullest = sparse.kron(sparse.eye(levels), np.ones((devices, 1)))
    of_table = sparse.csc_matrix(
        (np.ones(number), (table, np.arange(number))), (tables, number)
    )
    none = sparse.csc_matrix((tables, levels))
    most = np.concatenate([grow, shrink, np.full(levels, np.inf)])
    found = linprog(
        np.append(np.full(2 * number, change_ms), level_ms),
        sparse.hstack([more, -more, -fullest], "csc"),
        -held,
        sparse.hstack([of_table, -of_table, none], "csc"),
        np.zeros(tables),
        np.stack([np.zeros(len(most)), most], axis=1),
        method="highs-ds",
        options={"presolve": False},  # takes longer than it saves
    )
    return found.x[:number] - found.x[number : 2 * number]


def _shares(candidate: Candidate) -> np.ndarray:
    """``[row_shards]`` of the table's ids."""
    return candidate.expected / candidate.expected.sum()
