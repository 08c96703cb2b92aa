"""Bytes that a plan takes in device memory, as its arrays are really allocated.

A storage is as large on every device as on its fullest, with its optimizer state; so
are the buffers of its exchange.
"""

from __future__ import annotations

import dataclasses

from embark_jax.planner import traffic
from embark_jax.planner.storage import StorageKind
from embark_jax.planner.workload import TableUse, Workload

MEMORY_SHARE = 0.9
"""Of a device's memory, for tables, optimizer state and exchange buffers; the rest is
for the dense layers, the CUDA context and NCCL. (EMBark allows the tables alone 60 of
an H100's 80 GB: HugeCTR, ``benchmarks/embedding_collection``.)"""

INDEX_VALUES = 5
"""int32 values that a route keeps for each place of an exchange: slot, bag (UB: group
of the returned row), position, and of the grouping row and group."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one device for a unit of each quantity of a storage."""

    workload: Workload

    @property
    def limit_bytes(self) -> float:
        return self.workload.fleet.device.memory_bytes * MEMORY_SHARE

    def row_bytes(self, width: int) -> float:
        """A slot: parameters and optimizer state."""
        per_parameter, per_row = self.workload.state_values
        return traffic.VALUE_BYTES * (width * (1 + per_parameter) + per_row)

    def piece_bytes(self, storage: StorageKind) -> float:
        """Partial sums to send and received, of a piece."""
        if storage.cluster != "rb":
            return 0.0
        workload = self.workload
        return 2 * traffic.piece_buffer_bytes(
            storage.width, workload.device_batch, workload.devices
        )

    def node_piece_bytes(self, storage: StorageKind) -> float:
        """The same of a node, where its devices add up theirs."""
        if storage.cluster != "rb" or not storage.hierarchical:
            return 0.0
        workload = self.workload
        return 2 * traffic.piece_buffer_bytes(
            storage.width, workload.device_batch, workload.fleet.nodes
        )

    def id_bytes(self, storage: StorageKind) -> float:
        """A place of capacity for each device: its route, its row gradient, and in UB
        its row, to send and received."""
        if storage.cluster == "dp":
            return 0.0
        devices = self.workload.devices
        index_bytes = traffic.id_buffer_bytes(INDEX_VALUES + storage.weighted, devices)
        rows = 3 if storage.cluster == "ub" else 1
        return index_bytes + rows * traffic.row_buffer_bytes(storage.width, devices)

    def replicated_bytes(self, use: TableUse) -> float:
        """A whole table, and the buffer that its gradients are summed in."""
        rows = min(use.rows, self.workload.batch_size * use.hotness)
        gradients = traffic.replicated_gradient_bytes(rows, use.dim)
        return use.rows * self.row_bytes(use.dim) + gradients
