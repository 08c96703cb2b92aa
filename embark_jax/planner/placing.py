"""Gives every shard an owner, so that the fullest devices are little over the rest:
first greedily, then by exchanging shards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embark_jax.planner.candidates import Candidate
from embark_jax.planner.ledger import Ledger

EVENNESS = 1e-3
"""Weight of a load that raises no maximum, against one that does."""
ALIKE = 0.9
"""Row shards of one table whose sizes differ by less are placed together."""
EVEN = 0.98
"""Row shards whose sizes differ by less are taken to be equal."""
MAX_PAIRS = 3_000_000
"""Of shards that exchanges look at: a count, not a time, so that plans repeat."""


class Placing:
    """Tables with the owners of their shards, and the account of what they cost.

    Attributes:
      candidates, owners: of each table; ``owners[i][j * column_shards + k]``.
      ledger: the account.
    """

    def __init__(self, empty: Ledger, ms_per_byte: float):
        """
        Args:
          empty: an account without entries.
          ms_per_byte: what memory is taken to cost, so that it is kept even.
        """
        self.ledger = empty.copy()
        self.row_ms = ms_per_byte * empty.row_bytes
        self.ms_per_byte = ms_per_byte
        self.pairs_left = MAX_PAIRS
        self.candidates: list[Candidate] = []
        self.owners: list[np.ndarray] = []
        self._free_pieces = np.zeros(len(empty.storages))
        self._free_node_pieces = np.zeros(len(empty.storages))

    def place(
        self,
        candidates: Sequence[Candidate],
        forced: Sequence[tuple[int, ...] | None],
    ) -> None:
        """Places all tables, those with forced owners first, then those with most
        shards for a node, then the largest shards.

        Args:
          candidates: of each table.
          forced: the owners of its shards, or None.
        """
        self.candidates = list(candidates)
        self.owners = [np.zeros(0, int)] * len(candidates)
        for candidate in candidates:
            s = self.ledger.index(candidate)
            pieces = candidate.pieces * len(candidate.rows)
            pieces *= candidate.shape.column_shards
            self._free_pieces[s] += pieces / self.ledger.devices
            gpus = self.ledger.gpus_per_node
            pieces = candidate.pieces * candidate.shape.nodes_each(gpus)
            pieces *= candidate.shape.column_shards
            self._free_node_pieces[s] += pieces * gpus / self.ledger.devices
        for i, owners in enumerate(forced):
            if owners is not None:
                self.put(i, candidates[i], np.array(owners, int))
        together = [
            len(c.rows) if c.shape.storage.hierarchical else 0 for c in candidates
        ]
        sizes = [self._sizes(candidate).max(initial=0) for candidate in candidates]
        for i in sorted(
            range(len(candidates)), key=lambda i: (-together[i], -sizes[i], i)
        ):
            if forced[i] is None:
                self.put(i, candidates[i], self.best_owners(candidates[i]))

    def put(self, i: int, candidate: Candidate, owners: np.ndarray) -> None:
        """Enters table ``i``."""
        self.candidates[i], self.owners[i] = candidate, owners
        self.ledger.add(candidate, owners)

    def take(self, i: int) -> None:
        """Removes table ``i``."""
        self.ledger.add(self.candidates[i], self.owners[i], times=-1)

    def cost(self) -> float:
        """What is minimised: the step's time, and memory at its price."""
        return self.ledger.step_ms() + self.ms_per_byte * self.ledger.bytes()

    def best_owners(self, candidate: Candidate) -> np.ndarray:
        """Owners for the shards of a table, each another device as far as they go."""
        row_shards, columns = len(candidate.rows), candidate.shape.column_shards
        owners = np.zeros((row_shards, columns), int)
        sizes = self._sizes(candidate)
        order = np.argsort(-sizes, kind="stable")
        if candidate.shape.storage.hierarchical:
            owners[order] = self._owners_on_few_nodes(candidate, order[0])
            return owners.reshape(-1)
        again = np.zeros(self.ledger.devices)
        start = 0
        while start < row_shards:
            first = order[start]
            alike = int((sizes[order[start:]] >= ALIKE * sizes[first]).sum())
            room = int((again == again.min()).sum()) // columns
            batch = order[start : start + max(1, min(alike, room))]
            best = np.lexsort((self._scores(candidate, first), again))
            places = np.arange(len(batch) * columns) % len(best)
            owners[batch] = best[places].reshape(len(batch), columns)
            np.add.at(again, owners[batch], 1)
            start += len(batch)
        return owners.reshape(-1)

    def _owners_on_few_nodes(self, candidate: Candidate, largest: int) -> np.ndarray:
        """``[row_shards, columns]`` owners, those of a column on as few nodes as go, of
        which each holds as few columns as go."""
        row_shards, gpus = len(candidate.rows), self.ledger.gpus_per_node
        scores = self._scores(candidate, largest)
        again = np.zeros(self.ledger.devices)
        owners = []
        for _ in range(candidate.shape.column_shards):
            held = again.reshape(-1, gpus)
            best = np.sort(scores.reshape(-1, gpus), axis=1)[:, :row_shards]
            nodes = np.lexsort((best.sum(axis=1), held.sum(axis=1)))
            rank = np.repeat(np.argsort(nodes), gpus)
            order = np.lexsort((scores, again, rank))
            owners.append(order[np.arange(row_shards) % len(order)])
            np.add.at(again, owners[-1], 1)
        return np.stack(owners, axis=1)

    def exchange_shards(self, movable: Sequence[bool]) -> None:
        """Moves or swaps shards of one storage between devices, always the best pair,
        until none helps.

        Args:
          movable: whether the shards of each table may move.
        """
        for s in np.flatnonzero(self.ledger.tables):
            shards = [
                (i, index)
                for i, candidate in enumerate(self.candidates)
                if movable[i]
                and self.ledger.index(candidate) == s
                and not self._even(candidate)
                for index in range(len(self.owners[i]))
            ]
            if shards:
                _Exchanges(self, int(s), shards).run()

    def _even(self, candidate: Candidate) -> bool:
        """Whether it lies alike on every device, so that no shard need move."""
        if candidate.replicated:
            return True
        sizes = self._sizes(candidate)
        everywhere = candidate.shape.shards % self.ledger.devices == 0
        return everywhere and bool(sizes.min() >= EVEN * sizes.max())

    def _sizes(self, candidate: Candidate) -> np.ndarray:
        """``[row_shards]`` how much a shard weighs."""
        s, ledger = self.ledger.index(candidate), self.ledger
        return (
            ledger.piece_ms[s] * candidate.pieces
            + ledger.id_ms[s] * ledger.padded_ids(candidate.certain, candidate.expected)
            + self.row_ms[s] * candidate.rows
            + candidate.owner_ms
        )

    def _scores(self, candidate: Candidate, row_shard: int) -> np.ndarray:
        """``[devices]`` what it costs to own one more shard."""
        s, ledger = self.ledger.index(candidate), self.ledger
        certain, expected = ledger.certain[s], ledger.expected[s]
        more_ids = ledger.padded_ids(
            certain + candidate.certain[row_shard],
            expected + candidate.expected[row_shard],
        )
        scores = np.zeros(ledger.devices)
        of_nodes = np.repeat(ledger.node_pieces[s], ledger.gpus_per_node)
        for price, before, after, free in (
            (
                ledger.node_piece_ms[s],
                of_nodes,
                of_nodes + candidate.pieces,
                np.ceil(self._free_node_pieces[s] - 1e-9),
            ),
            (
                ledger.piece_ms[s],
                ledger.pieces[s],
                ledger.pieces[s] + candidate.pieces,
                np.ceil(self._free_pieces[s] - 1e-9),
            ),
            (ledger.id_ms[s], ledger.padded_ids(certain, expected), more_ids, 0),
            (
                self.row_ms[s],
                ledger.rows[s],
                ledger.rows[s] + candidate.rows[row_shard],
                0,
            ),
            (1, ledger.owner_ms, ledger.owner_ms + candidate.owner_ms[row_shard], 0),
        ):
            raised = np.maximum(after - max(before.max(), free), 0)
            scores += price * (raised + EVENNESS * after)
        return scores


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
        # Devices of a group may exchange shards.
        staged = ledger.storages[s].hierarchical
        self.group = ledger.gpus_per_node if staged else ledger.devices
        price = np.array([ledger.piece_ms[s], ledger.id_ms[s], placing.row_ms[s], 1.0])
        per_table: dict[int, np.ndarray] = {}
        for i in {i for i, _ in shards}:
            candidate = placing.candidates[i]
            ids = candidate.certain + ledger.slack * candidate.expected
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
        while placing.pairs_left > 0 and self._improve():
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
                self.placing.pairs_left -= len(classes)
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
