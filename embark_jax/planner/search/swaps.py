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
    for s in np.flatnonzero(found.loads.tables):
        _Swaps(found, int(s), movable, ms_per_byte).run()
        found = found.copy()
    return min(found, assignment, key=Assignment.rank)


class _Swaps:
    """Swaps of the shards of one storage.

    Attributes:
      shards: ``(table, index)`` of each shard, the index in its table's owners.
      load: ``[7, classes]`` loads; the last class is nothing, of which all devices have
        some, since swapping a shard with nothing moves it.
      held: ``[classes][devices]`` lists of shards.
    """

    def __init__(
        self, assignment: Assignment, s: int, movable: np.ndarray, ms_per_byte: float
    ):
        instance = assignment.instance
        each, objective = instance.candidates, instance.objective
        self.assignment, self.s, self.objective = assignment, s, objective
        lying = (each.storage[assignment.candidate] == s) & movable
        shards = [
            (table, index)
            for table in np.flatnonzero(lying).tolist()
            for index in range(len(assignment.owners[table]))
        ]
        self.shards = shards
        own = assignment.loads.own
        self.devices = devices = own.shape[2]
        staged = objective.storages[s].hierarchical
        self.node = np.arange(devices) // (
            instance.workload.fleet.gpus_per_node if staged else devices
        )
        unit_bytes = objective.unit_bytes(assignment.loads)
        prices = (objective.prices + ms_per_byte * unit_bytes)[:, s]
        self.price = np.append(prices[:PEAK_NODE], 1.0)
        loads = [
            each.shard_loads(int(assignment.candidate[table]))[
                :, index // int(each.column_shards[assignment.candidate[table]])
            ]
            for table, index in shards
        ]
        classes, of_class = np.unique(
            np.array(loads).reshape(-1, 7), axis=0, return_inverse=True
        )
        self.load = np.append(classes, np.zeros((1, 7)), axis=0).T
        self.held: list[list[list[int]]] = [
            [[] for _ in range(devices)] for _ in classes
        ]
        for shard, (table, index) in enumerate(shards):
            owner = int(assignment.owners[table][index])
            self.held[int(of_class.reshape(-1)[shard])][owner].append(shard)
        self.count = np.array([[len(h) for h in each] for each in self.held])
        self.count = np.append(
            self.count.reshape(-1, devices), np.ones((1, devices), int), axis=0
        )
        self.own = own[:, s].copy()
        self.own[UPDATE_MS] = assignment.loads.update_ms

    def run(self) -> None:
        """Swaps while it helps, then puts the tables where their shards went."""
        left = MOST_PAIRS
        while left > 0 and self.shards:
            classes, devices = np.nonzero(self.count)
            tried, found = self._best(classes, devices)
            left -= tried
            if found is None:
                break
            mine, here, other, there = found
            moved = self.load[:, mine] - self.load[:, other]
            self.own[:, here] -= moved
            self.own[:, there] += moved
            self._move(mine, here, there)
            self._move(other, there, here)
        owners = {
            table: self.assignment.owners[table].copy() for table, _ in self.shards
        }
        for of_class in self.held:
            for device, shards in enumerate(of_class):
                for shard in shards:
                    table, index = self.shards[shard]
                    owners[table][index] = device
        for table, found in owners.items():
            self.assignment.owners[table] = found

    def _move(self, mine: int, here: int, there: int) -> None:
        if mine < len(self.held):
            self.held[mine][there].append(self.held[mine][here].pop())
            self.count[mine, here] -= 1
            self.count[mine, there] += 1

    def _best(
        self, classes: np.ndarray, devices: np.ndarray
    ) -> tuple[int, tuple[int, int, int, int] | None]:
        """Returns the number of tried pairs, and ``(class, device, class, device)`` of
        the swap with a device at a peak that saves most, if any saves."""
        costs = self._costs(self.own)
        least, found, tried = -1e-7 * costs.max(axis=1).sum(), None, 0
        for here in np.unique(costs.argmax(axis=1)).tolist():
            others = costs.copy()
            others[:, here] = -np.inf
            order = np.argsort(others, axis=1)[:, -2:]
            second, first = np.take_along_axis(others, order, axis=1).T
            rest = np.where(devices == order[:, 1:], second[:, None], first[:, None])
            allowed = (devices != here) & (self.node[devices] == self.node[here])
            for mine in np.flatnonzero(self.count[:-1, here]).tolist():
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
