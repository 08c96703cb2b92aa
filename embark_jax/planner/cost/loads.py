"""The loads of devices."""

from __future__ import annotations

import copy

import numpy as np

from embark_jax.planner.cost.candidates import KINDS, Candidates, Load
from embark_jax.planner.request.workload import Workload


class Loads:
    """The loads of the shards on each device; tables can be added and removed.

    Attributes:
      own: ``[KINDS, storages, devices]`` loads.
      node_sums: ``[storages, nodes]`` partial sums of nodes, if they are added up
        there.
      tables: ``[storages]`` number of tables in each.
      everywhere_ms: time of every device alike.
      everywhere_bytes: ``[2]`` memory of every device alike, in backward of the dense
        layers and in the update.
    """

    def __init__(self, candidates: Candidates, workload: Workload):
        fleet = workload.fleet
        storages = len(candidates.storages)
        self.candidates = candidates
        self.gpus_per_node = fleet.gpus_per_node
        self.own = np.zeros((KINDS, storages, fleet.devices))
        self.node_sums = np.zeros((storages, fleet.nodes))
        self.tables = np.zeros(storages, int)
        self.everywhere_ms, self.everywhere_bytes = 0.0, np.zeros(2)

    def copy(self) -> Loads:
        """Returns an independent copy."""
        other = copy.copy(self)
        other.own, other.node_sums = self.own.copy(), self.node_sums.copy()
        other.tables = self.tables.copy()
        other.everywhere_bytes = self.everywhere_bytes.copy()
        return other

    def add(self, candidate: int, owners: np.ndarray, times: int = 1) -> None:
        """Adds a table whose shard (j, k) lies on ``owners[j * column_shards + k]``;
        with ``times`` -1 removes it."""
        candidates = self.candidates
        s = candidates.storage[candidate]
        self.tables[s] += times
        if candidates.hot_rows[candidate]:
            self.tables[candidates.hot_storage[candidate]] += times
        self.everywhere_ms += times * candidates.everywhere_ms[candidate]
        self.everywhere_bytes += times * candidates.everywhere_bytes[:, candidate]
        if not len(owners):
            return
        if len(set(owners.tolist())) == len(owners):
            columns = candidates.column_shards[candidate]
            shards = candidates.shard_loads(candidate)
            if columns > 1:
                shards = np.repeat(shards, columns, axis=1)
            self.own[:, s, owners] += times * shards
        else:
            self.own[:, s] += times * self.of_devices(candidate, owners)
        if candidates.staged[candidate]:
            self.node_sums[s] += times * self.of_nodes(candidate, owners)

    def of_devices(self, candidate: int, owners: np.ndarray) -> np.ndarray:
        """Returns ``[KINDS, devices]`` loads of a table whose shards lie on
        ``owners``."""
        columns = self.candidates.column_shards[candidate]
        loads = np.repeat(self.candidates.shard_loads(candidate), columns, axis=1)
        # A device may own several shards: bincount adds them up, one kind of load
        # after the other.
        devices = self.own.shape[2]
        index = (np.arange(KINDS)[:, None] * devices + owners).reshape(-1)
        added = np.bincount(index, loads.reshape(-1), KINDS * devices)
        return added.reshape(KINDS, devices)

    def of_nodes(self, candidate: int, owners: np.ndarray) -> np.ndarray:
        """Returns ``[nodes]`` partial sums of a table whose shards lie on ``owners``:
        one for each column shard of which a node has a row shard."""
        columns = int(self.candidates.column_shards[candidate])
        held = np.zeros((self.node_sums.shape[1], columns), bool)
        held[owners // self.gpus_per_node, np.arange(len(owners)) % columns] = True
        return self.candidates.shard_loads(candidate)[Load.SUMS].max() * held.sum(
            axis=1
        )

    @property
    def update_ms(self) -> np.ndarray:
        """Returns ``[devices]`` time in the update."""
        return self.own[Load.UPDATE_MS].sum(axis=0)

    @property
    def store_ms(self) -> np.ndarray:
        """Returns ``[devices]`` time of row stores."""
        return self.own[Load.STORE_MS].sum(axis=0)
