"""Adds up what placed shards cost: the one account that search and report share."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from embark_jax.planner import traffic
from embark_jax.planner.candidates import Candidate
from embark_jax.planner.capacities import padded_ids
from embark_jax.planner.cost import CostModel
from embark_jax.planner.memory import Memory
from embark_jax.planner.storage import StorageKind


class Ledger:
    """Loads of every device in every storage, with tables added and removed.

    Attributes:
      loads: ``[4, storages, devices]`` pieces, certain and expected ids, and rows, of
        what devices own; also one by one under these names.
      node_pieces: ``[storages, nodes]`` of hierarchical ones: lanes that a node has
        shards for.
      owner_ms: ``[devices]`` time for the own shards.
      piece_ms, node_piece_ms, id_ms, fixed_ms: ``[storages]`` prices.
      row_bytes, id_bytes: ``[storages]`` memory held for a unit of each.
      piece_bytes, node_piece_bytes, place_bytes, touched_bytes: the same, in the
        update, of a unit of each, an id and a row that the batch touches.
      fixed_bytes: ``[2]`` of any plan, in backward of dense layers and in the update.
    """

    def __init__(
        self,
        storages: Sequence[StorageKind],
        devices: int,
        model: CostModel,
        memory: Memory,
    ):
        self.storages = tuple(storages)
        self.devices = devices
        self.limit_bytes = memory.limit_bytes
        self.slack = memory.workload.capacity_slack
        self.loads = np.zeros((4, len(storages), devices))
        fleet = memory.workload.fleet
        self.gpus_per_node = fleet.gpus_per_node
        self.node_pieces = np.zeros((len(storages), fleet.nodes))
        self.tables = np.zeros(len(storages), int)
        self.owner_ms = np.zeros(devices)
        self.everywhere_ms = 0.0
        self.everywhere_bytes = 0.0
        prices = [model.storage_price(storage) for storage in storages]
        self.fixed_ms = np.array([price.fixed_ms for price in prices])
        self.piece_ms = np.array([price.piece_ms for price in prices])
        self.node_piece_ms = np.array([price.node_piece_ms for price in prices])
        self.id_ms = np.array([price.id_ms for price in prices])
        self.piece_bytes = np.array([memory.piece_bytes(each) for each in storages])
        self.node_piece_bytes = np.array(
            [memory.node_piece_bytes(each) for each in storages]
        )
        self.id_bytes = np.array([memory.id_bytes(each) for each in storages])
        self.place_bytes = np.array([memory.place_bytes(each) for each in storages])
        self.touched_bytes = np.array(
            [traffic.rows_bytes(1, each.width) for each in storages]
        )
        self.micro_batches = memory.workload.micro_batches
        self.fixed_bytes = memory.dense_bytes + np.array(
            [memory.activation_bytes, memory.dense_gradient_bytes]
        )
        self.row_bytes = np.array([memory.row_bytes(each.width) for each in storages])
        self._index = {storage: s for s, storage in enumerate(storages)}

    def index(self, candidate: Candidate) -> int:
        """Of the candidate's storage."""
        return self._index[candidate.shape.storage]

    def add(self, candidate: Candidate, owners: np.ndarray, times: int = 1) -> None:
        """Enters a table whose shard (j, k) lies on ``owners[j * column_shards + k]``;
        with ``times`` -1 removes it."""
        s = self.index(candidate)
        self.tables[s] += times
        self.everywhere_ms += times * candidate.everywhere_ms
        self.everywhere_bytes += times * candidate.everywhere_bytes
        row_shards = np.arange(len(owners)) // candidate.shape.column_shards
        added = times * candidate.loads[:, row_shards]
        kinds = np.arange(len(added))[:, None]
        places = (kinds * self.devices + owners).reshape(-1)
        size = len(added) * self.devices
        totals = np.bincount(places, added.reshape(-1), size).reshape(len(added), -1)
        self.loads[:, s] += totals[:-1]
        self.owner_ms += totals[-1]
        if self.storages[s].hierarchical:
            pieces = self.of_nodes(candidate, owners)
            self.node_pieces[s] += times * pieces

    def of_nodes(self, candidate: Candidate, owners: np.ndarray) -> np.ndarray:
        """``[nodes]`` lanes that each node has a shard for, of a table whose shards lie
        on ``owners``."""
        columns = candidate.shape.column_shards
        held = np.zeros((self.node_pieces.shape[1], columns), bool)
        held[owners // self.gpus_per_node, np.arange(len(owners)) % columns] = True
        return candidate.pieces * held.sum(axis=1)

    def copy(self) -> Ledger:
        """An account of its own with the same entries."""
        other = copy.copy(self)
        for name in ("loads", "node_pieces", "tables", "owner_ms"):
            setattr(other, name, getattr(self, name).copy())
        return other

    @property
    def pieces(self) -> np.ndarray:
        return self.loads[0]

    @property
    def certain(self) -> np.ndarray:
        return self.loads[1]

    @property
    def expected(self) -> np.ndarray:
        return self.loads[2]

    @property
    def rows(self) -> np.ndarray:
        return self.loads[3]

    def padded_ids(self, certain: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """Places of a buffer for so many ids."""
        # Entries removed again leave rounding errors below zero.
        return padded_ids(certain, np.maximum(expected, 0), self.slack)

    @property
    def capacity(self) -> np.ndarray:
        """``[storages]`` of the exchange of ids."""
        return self.padded_ids(self.certain, self.expected).max(axis=1)

    def padded_ms(self) -> float:
        """What every device spends alike."""
        storages = (
            self.fixed_ms * (self.tables > 0)
            + self.piece_ms * self.pieces.max(axis=1)
            + self.node_piece_ms * self.node_pieces.max(axis=1)
            + self.id_ms * self.capacity
        )
        return float(storages.sum()) + self.everywhere_ms

    def device_ms(self) -> np.ndarray:
        """``[devices]`` predicted time of a step."""
        return self.padded_ms() + self.owner_ms

    def step_ms(self) -> float:
        """Of the slowest device."""
        return self.padded_ms() + float(self.owner_ms.max())

    def bytes(self) -> float:
        """Allocated on every device, at the fuller of the two times."""
        rows, capacity = self.rows.max(axis=1), self.capacity
        held = self.row_bytes @ rows + self.id_bytes @ capacity + self.everywhere_bytes
        places = capacity * self.devices
        touched = np.minimum(places, rows)
        if self.micro_batches > 1:  # of one, and the sum over all
            touched = touched + np.minimum(self.micro_batches * places, rows)
        update = (
            self.piece_bytes @ self.pieces.max(axis=1)
            + self.node_piece_bytes @ self.node_pieces.max(axis=1)
            + self.place_bytes @ capacity
            + self.touched_bytes @ touched
        )
        moments = self.fixed_bytes + np.array([0.0, float(update)])
        return float(held + moments.max())
