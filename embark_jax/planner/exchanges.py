"""Exchanges shards between devices, so that the fullest are little over the rest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embark_jax.planner.candidates import Candidate
from embark_jax.planner.placing import Placing

EVENNESS = 1e-3
"""Weight of a load that raises no maximum, against one that does."""
EVEN = 0.98
"""Row shards whose ids differ by less are taken to be equal."""
MAX_PAIRS = 100_000
"""Of shards of a storage that are looked at: a count, not a time, so that plans
repeat."""


def exchange_shards(placing: Placing, movable: Sequence[bool]) -> None:
    """Moves or swaps shards of one storage between devices, always the best pair,
    until none helps.

    Args:
      placing: tables with their owners; changed in place.
      movable: whether the shards of each table may move.
    """
    ledger = placing.ledger
    for s in np.flatnonzero(ledger.tables):
        shards = [
            (i, index)
            for i, candidate in enumerate(placing.candidates)
            if movable[i]
            and ledger.index(candidate) == s
            and not _even(candidate, ledger.devices)
            for index in range(len(placing.owners[i]))
        ]
        if shards:
            _Exchanges(placing, int(s), shards).run()


def _even(candidate: Candidate, devices: int) -> bool:
    """Whether it lies alike on every device, so that no shard need move."""
    if candidate.replicated:
        return True
    ids = candidate.certain + candidate.expected
    everywhere = candidate.shape.shards % devices == 0
    return everywhere and bool(ids.min() >= EVEN * ids.max())


class _Exchanges:
    """Local search among the shards of one storage.

    Loads are rows of arrays: pieces, ids, rows, owner's time, each times its price, so
    that the cost is the sum of their maxima over devices. Ids count here with slack
    alone; what chance adds hardly depends on who owns what. Shards of equal loads are
    one *class*: it does not matter which of them moves. Shards that are added up inside
    their node stay there, so that the pieces of nodes stay as they are.
    """

    def __init__(self, placing: Placing, s: int, shards: list[tuple[int, int]]):
        ledger = placing.ledger
        self.placing, self.shards = placing, shards
        self.pairs_left = MAX_PAIRS
        # Devices of a group may exchange shards.
        staged = ledger.storages[s].hierarchical
        self.group = ledger.gpus_per_node if staged else ledger.devices
        price = np.append(placing.prices[:, s], 1.0)
        per_table: dict[int, np.ndarray] = {}
        for i in {i for i, _ in shards}:
            candidate = placing.candidates[i]
            ids = candidate.ids(ledger.slack)
            pieces = np.full(len(ids), candidate.pieces)
            loads = np.stack([pieces, ids, candidate.rows, candidate.owner_ms], axis=1)
            per_table[i] = loads * price
        loads = np.array(
            [
                per_table[i][index // placing.candidates[i].shape.column_shards]
                for i, index in shards
            ]
        )
        classes, class_of = np.unique(loads, axis=0, return_inverse=True)
        # The last class is nothing, of which all devices have some: to swap a shard
        # with it is to move the shard.
        self.load = np.append(classes, np.zeros((1, 4)), axis=0).T
        self.held: list[list[list[int]]] = [
            [[] for _ in range(ledger.devices)] for _ in classes
        ]
        for shard, (i, index) in enumerate(shards):
            owner = int(placing.owners[i][index])
            self.held[int(class_of[shard])][owner].append(shard)
        self.count = np.array([[len(h) for h in each] for each in self.held])
        self.count = np.append(self.count, np.ones((1, ledger.devices), int), axis=0)
        self.total = price[:, None] * np.array(
            [
                ledger.pieces[s],
                ledger.certain[s] + ledger.slack * ledger.expected[s],
                ledger.rows[s],
                ledger.owner_ms,
            ]
        )

    def run(self) -> None:
        placing = self.placing
        while self.pairs_left > 0 and self._improve():
            pass
        owners = {i: placing.owners[i].copy() for i, _ in self.shards}
        for each in self.held:
            for device, shards in enumerate(each):
                for shard in shards:
                    i, index = self.shards[shard]
                    owners[i][index] = device
        for i, found in owners.items():
            if not np.array_equal(found, placing.owners[i]):
                placing.take(i)
                placing.put(i, placing.candidates[i], found)

    def _improve(self) -> bool:
        """Does the best exchange with a device that is fullest in something."""
        best, found = -1e-9 * max(1.0, float(self.total.max())), None
        classes, devices = np.nonzero(self.count)
        for here in np.unique(self.total.argmax(axis=1)):
            for mine in np.flatnonzero(self.count[:, here]):
                self.pairs_left -= len(classes)
                change = self._changes(int(mine), int(here), classes, devices)
                b = int(np.argmin(change))
                if change[b] < best:
                    best = change[b]
                    found = int(mine), int(here), int(classes[b]), int(devices[b])
        if found is None:
            return False
        mine, here, other, there = found
        moved = self.load[:, mine] - self.load[:, other]
        self.total[:, here] -= moved
        self.total[:, there] += moved
        self._move(mine, here, there)
        self._move(other, there, here)
        return True

    def _move(self, mine: int, here: int, there: int) -> None:
        """Moves a shard of this class; nothing, if the class is nothing."""
        if mine == len(self.held):
            return
        self.held[mine][there].append(self.held[mine][here].pop())
        self.count[mine, here] -= 1
        self.count[mine, there] += 1

    def _changes(
        self, mine: int, here: int, classes: np.ndarray, devices: np.ndarray
    ) -> np.ndarray:
        """``[pairs]`` by how much the cost grows if a shard of class ``mine`` on
        ``here`` is exchanged for one of each of ``classes`` on each of ``devices``."""
        total = self.total
        moved = self.load[:, mine][:, None] - self.load[:, classes]
        before_here, before_there = total[:, here][:, None], total[:, devices]
        after_here, after_there = before_here - moved, before_there + moved
        after = np.maximum(
            np.maximum(after_here, after_there), self._rest(here)[:, devices]
        )
        change = (after - total.max(axis=1)[:, None]).sum(axis=0)
        # Among exchanges that raise no maximum, those that even out.
        squares = after_here**2 + after_there**2 - before_here**2 - before_there**2
        scale = np.maximum(total.max(axis=1), 1e-30)[:, None]
        change += EVENNESS * (squares / scale).sum(axis=0)
        change[(devices == here) | (devices // self.group != here // self.group)] = (
            np.inf
        )
        return change

    def _rest(self, here: int) -> np.ndarray:
        """``[loads, devices]`` the largest load of all but ``here`` and this one."""
        others = self.total.copy()
        others[:, here] = -np.inf
        first = others.argmax(axis=1)
        kinds = np.arange(len(others))
        rest = np.repeat(others[kinds, first][:, None], others.shape[1], axis=1)
        others[kinds, first] = -np.inf
        rest[kinds, first] = others.max(axis=1)
        return rest
