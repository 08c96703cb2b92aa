"""Swaps: single shards change devices, so that the fullest devices have less.

Local search moves whole tables. After it, a shard here and there would lie better where
another is: two shards of one storage change devices, or one shard goes to another
device. Each time the best such pair is swapped, until none helps. Shards that add the
same loads are one *class*: it does not matter which of them is taken. Shards that are
added up inside their node stay in it, so that partial sums of nodes stay as they are.
"""

from __future__ import annotations

import numpy as np

from embark_jax.planner.cost.candidates import UPDATE_MS
from embark_jax.planner.cost.objective import PEAK_NODE
from embark_jax.planner.search.assignment import Assignment

EVENNESS = 1e-3
"""Weight of a load that raises no peak, relative to one that does."""
MOST_PAIRS = 200_000
"""Largest number of shard pairs of a storage that are tried: a count, not a time, so
that plans repeat."""


def swap_shards(
    assignment: Assignment,
    movable: np.ndarray,
    ms_per_byte: float = 0.0,
) -> Assignment:
    """Returns the assignment after swaps, or the old one if swaps make it no better.

    Args:
      assignment: assignment of all tables; not changed.
      movable: ``[tables]`` whether the planner chooses their owners.
      ms_per_byte: price of memory.
    """
    if assignment.instance.workload.devices == 1:
        return assignment
    found = assignment.copy()
    for s in np.flatnonzero(found.loads.tables).tolist():
        _Swaps(found, s, movable, ms_per_byte).run()
    return min(found.copy(), assignment, key=Assignment.rank)


class _Swaps:
    """Swaps of the shards of one storage.

    Attributes:
      tables: tables of the storage whose owners the planner chooses.
      owner: ``[shards]`` owner of each of their shards, table by table.
      kind: ``[shards]`` class of each.
      load: ``[7, classes]`` loads; the last class is nothing, of which all devices have
        some, since swapping a shard with nothing moves it.
      own: ``[7, devices]`` loads in the storage, but the update in all storages.
    """

    def __init__(
        self, assignment: Assignment, s: int, movable: np.ndarray, ms_per_byte: float
    ):
        instance = assignment.instance
        each, objective = instance.candidates, instance.objective
        self.assignment, self.objective = assignment, objective
        lying = movable & (each.storage[assignment.candidate] == s)
        self.tables = np.flatnonzero(lying).tolist()
        owners = [assignment.owners[table] for table in self.tables]
        self.owner = np.concatenate([np.zeros(0, np.int64), *owners])
        row_shards = [np.zeros(0, np.int64)]
        for c, held in zip(assignment.candidate[lying], owners, strict=True):
            of_shard = np.arange(len(held)) // each.column_shards[c]
            row_shards.append(each.first[c] + of_shard)
        kinds, kind = np.unique(np.concatenate(row_shards), return_inverse=True)
        classes, kind_class = np.unique(
            each.loads[:, kinds], axis=1, return_inverse=True
        )
        self.kind = kind_class.reshape(-1)[kind.reshape(-1)]
        self.load = np.append(classes, np.zeros((7, 1)), axis=1)
        staged = objective.storages[s].hierarchical
        gpus = instance.workload.fleet.gpus_per_node
        self.node = np.arange(objective.devices) // (
            gpus if staged else objective.devices
        )
        unit_bytes = objective.unit_bytes(assignment.loads)
        prices = (objective.prices + ms_per_byte * unit_bytes)[:, s]
        self.price = np.append(prices[:PEAK_NODE], 1.0)
        self.own = assignment.loads.own[:, s].copy()
        self.own[UPDATE_MS] = assignment.loads.update_ms

    def run(self) -> None:
        """Swaps while it helps, then puts the tables where their shards went."""
        before, left = self.owner.copy(), MOST_PAIRS
        while left > 0 and self.tables:
            held = np.zeros((self.load.shape[1], self.own.shape[1]), int)
            np.add.at(held, (self.kind, self.owner), 1)
            held[-1] = 1
            tried, found = self._best(held)
            left -= tried
            if found is None:
                break
            mine, here, other, there = found
            moved = self.load[:, mine] - self.load[:, other]
            self.own[:, here] -= moved
            self.own[:, there] += moved
            going = np.flatnonzero((self.kind == mine) & (self.owner == here))[:1]
            coming = np.flatnonzero((self.kind == other) & (self.owner == there))[:1]
            self.owner[going], self.owner[coming] = there, here
        begin = 0
        for table in self.tables:
            end = begin + len(self.assignment.owners[table])
            if (self.owner[begin:end] != before[begin:end]).any():
                candidate = int(self.assignment.candidate[table])
                self.assignment.take(table)
                self.assignment.put(table, candidate, self.owner[begin:end])
            begin = end

    def _best(self, held: np.ndarray) -> tuple[int, tuple[int, int, int, int] | None]:
        """Returns the number of tried pairs, and ``(class, device, class, device)`` of
        the swap with a device at a peak that saves most, if any saves.

        Args:
          held: ``[classes, devices]`` number of shards.
        """
        classes, devices = np.nonzero(held)
        costs = self._costs(self.own)
        least, found, tried = -1e-7 * costs.max(axis=1).sum(), None, 0
        for here in np.unique(costs.argmax(axis=1)).tolist():
            others = costs.copy()
            others[:, here] = -np.inf
            order = np.argsort(others, axis=1)[:, -2:]
            second, first = np.take_along_axis(others, order, axis=1).T
            rest = np.where(devices == order[:, 1:], second[:, None], first[:, None])
            allowed = (devices != here) & (self.node[devices] == self.node[here])
            for mine in np.flatnonzero(held[:-1, here]).tolist():
                tried += len(classes)
                moved = self.load[:, [mine]] - self.load[:, classes]
                after_here = self._costs(self.own[:, [here]] - moved)
                after_there = self._costs(self.own[:, devices] + moved)
                peak = np.maximum(np.maximum(after_here, after_there), rest)
                change = (peak - costs.max(axis=1)[:, None]).sum(axis=0)
                before = costs[:, [here]] ** 2 + costs[:, devices] ** 2
                squares = after_here**2 + after_there**2 - before
                scale = np.maximum(costs.max(axis=1), 1e-30)[:, None]
                change += EVENNESS * (squares / scale).sum(axis=0)
                change[~allowed] = np.inf
                best = int(np.argmin(change))
                if change[best] < least:
                    least = change[best]
                    found = mine, here, int(classes[best]), int(devices[best])
        return tried, found

    def _costs(self, own: np.ndarray) -> np.ndarray:
        """Returns ``[6, ...]`` ms that each peak would have with ``[7, ...]`` loads."""
        price = self.price.reshape(-1, *[1] * (own.ndim - 1))
        return price * self.objective.counted(own)
