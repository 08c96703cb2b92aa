"""All tables as one program: loads, prices and memory of every candidate.

Alike tables are one group, of which so many take each candidate. For each storage there
are *levels*, the most pieces, ids and rows of any device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embark_jax.planner.box import (
    IDS,
    KINDS,
    NODE_PIECES,
    OWNER,
    PIECES,
    ROWS,
    Box,
    Group,
)
from embark_jax.planner.candidates import Candidate
from embark_jax.planner.ledger import Ledger


class Program:
    """The program of all tables.

    Ids count in thousands and rows in millions, to keep the numbers near each other.

    Attributes:
      counts: ``[groups]`` tables.
      candidates: of all groups, one after the other.
      group, storage, placed: ``[candidates]``.
      mean: ``[loads, candidates]`` what a table that takes it adds to each device.
      top: ``[loads, candidates]`` of its largest shard.
      prices: ``[loads]`` ms a unit of level.
      whole: ``[loads]`` whether levels are whole numbers.
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
        self.placed = np.repeat([group.placed for group in groups], sizes)
        self.candidates = [c for group in groups for c in group.candidates]
        self.storage = np.array([empty.index(c) for c in self.candidates])
        self.storages = len(empty.storages)
        self.loads = (len(KINDS) - 1) * self.storages + 1
        self.units = np.repeat(
            [1.0, 1e3, 1e6, 1.0, 1.0], [self.storages] * (len(KINDS) - 1) + [1]
        )
        kinds = np.arange(self.loads) // self.storages
        self.whole = (kinds == PIECES) | (kinds == NODE_PIECES)
        self.prices = self._prices()
        each = np.arange(len(self.candidates))
        self.mean, self.top = np.zeros((2, self.loads, len(each)))
        for c, candidate in enumerate(self.candidates):
            loads = self._per_shard(candidate)
            for kind, load in enumerate(loads):
                row = self.load(kind)[c]
                total = load.sum() * candidate.shape.column_shards
                self.mean[row, c] = total / empty.devices / self.units[row]
                self.top[row, c] = load.max(initial=0) / self.units[row]
        expected = [c.expected.sum() * c.shape.column_shards for c in self.candidates]
        self.expected = np.array(expected) / empty.devices / self.units[self.load(IDS)]
        self.everywhere_ms = np.array([c.everywhere_ms for c in self.candidates])

    def load(self, kind: int) -> np.ndarray:
        """``[candidates]`` the load of this kind that each candidate adds to."""
        if kind == OWNER:
            return np.full(len(self.candidates), self.loads - 1)
        return kind * self.storages + self.storage

    def whole_box(self) -> Box:
        """All plans, without candidates that others take in: in UB a shard costs
        nothing by itself, so that finer row shards on the same device are as good."""
        row_shards = np.array([c.shape.row_shards for c in self.candidates])
        unique = np.array([c.shape.cluster == "ub" for c in self.candidates])
        live = ~unique
        for c in np.flatnonzero(unique):
            alike = (self.group == self.group[c]) & (self.storage == self.storage[c])
            finer = alike & (row_shards > row_shards[c])
            live[c] = (row_shards[finer] % row_shards[c]).all()
        zeros = np.zeros(self.loads)
        return Box(zeros, zeros + np.inf, live)

    def alone_ms(self) -> np.ndarray:
        """``[candidates]`` time of a table by itself, spread evenly."""
        return self.everywhere_ms + self.prices @ self.mean

    def padded_mean(self, tables: np.ndarray) -> np.ndarray:
        """``[loads]`` of devices that are all alike, with places for what chance adds
        to the ids expected.

        Args:
          tables: ``[candidates]`` how many take each.
        """
        mean, empty = self.mean @ tables, self.empty
        expected = np.bincount(self.storage, self.expected * tables, self.storages)
        ids = np.arange(IDS * self.storages, (IDS + 1) * self.storages)
        expected *= self.units[ids]
        none = np.zeros_like(expected)
        places = empty.padded_ids(none, expected) - empty.slack * expected
        mean[ids] += np.maximum(places, 0.0) / self.units[ids]
        return mean

    def moments(self) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """For both times of ``Ledger.bytes``, beside what is fixed: bytes of each
        candidate, and of a unit of each level. The gradients of touched rows are as
        many as there are places, or rows if those are fewer, of all tables of a
        storage: at least the sum over tables of what each has fewer of, with both
        spread evenly."""
        empty = self.empty
        none = np.zeros(self.storages)
        id_bytes = empty.id_bytes + empty.place_bytes
        # Of pieces, ids, rows, pieces of nodes, and the owner's time.
        dense = [none, empty.id_bytes, empty.row_bytes, none, [0.0]]
        update = [empty.piece_bytes, id_bytes, empty.row_bytes, empty.node_piece_bytes]
        each = np.arange(len(self.candidates))
        ids, rows = self.load(IDS), self.load(ROWS)
        places = self.mean[ids, each] * self.units[ids] * empty.devices
        slots = self.mean[rows, each] * self.units[rows]
        touched_bytes = empty.touched_bytes[self.storage] * np.minimum(places, slots)
        everywhere = np.array([c.everywhere_bytes for c in self.candidates])
        return (
            (everywhere, np.concatenate(dense) * self.units),
            (
                everywhere + touched_bytes,
                np.concatenate([*update, [0.0]]) * self.units,
            ),
        )

    def _per_shard(self, candidate: Candidate) -> list[np.ndarray]:
        """Loads of each kind of its row shards; of pieces of nodes once for each device
        of a node."""
        empty = self.empty
        node_devices = 0
        if candidate.shape.storage.hierarchical:
            gpus = empty.gpus_per_node
            node_devices = gpus * candidate.shape.nodes_each(gpus)
        return [
            np.full(len(candidate.rows), candidate.pieces),
            candidate.ids(empty.slack),
            candidate.rows,
            np.full(node_devices, candidate.pieces),
            candidate.owner_ms,
        ]

    def _prices(self) -> np.ndarray:
        none, empty = np.zeros(self.storages), self.empty
        prices = [empty.piece_ms, empty.id_ms, none, empty.node_piece_ms, [1.0]]
        return np.concatenate(prices) * self.units
