"""Bytes that a step takes in device memory, as its arrays are really allocated.

A storage, with its optimizer state, is as large on every device as on the fullest one;
so are the buffers of its exchange. The other arrays that a step makes exist at one of
two times, and the larger of them counts:

- in backward of the dense layers: all that they kept of forward, and its gradients;
  gradients of weights come late, in the memory of what they were made from;
- in the update: gradients of weights, and of rows of all storages, replicated tables
  included, since none is written before the whole step is known to be finite; and the
  buffers of all storages in which the gradients, or before them the rows, travelled,
  since their exchanges may be under way together.

The rest is held from the beginning of the step to its end.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from embark_jax._base.memory import bytes_text
from embark_jax.planner.cost.work import Peak
from embark_jax.planner.request.workload import Workload
from embark_jax.plans import traffic
from embark_jax.plans.options import Tier
from embark_jax.plans.placement import StorageKind
from embark_jax.plans.tables import TableSpec
from embark_jax.plans.wire import VALUE_BYTES

if TYPE_CHECKING:
    from embark_jax.planner.cost.candidates import Candidates

MEMORY_SHARE = 0.9
"""Share of a device's memory that a step may take; the rest is for the CUDA context,
NCCL, scratch of sorts and matrix products, and for gaps between arrays. JAX takes as
much if XLA_PYTHON_CLIENT_MEM_FRACTION says so
(https://docs.jax.dev/en/latest/gpu_memory_allocation.html)."""

STORED_TIERS: tuple[Tier, ...] = ("host", "disk")
"""Places beside device memory that have room for rows."""
DISK_SHARE = 1 / 2.5
"""Share of the disks that rows may take: a store has two files, each with room for a
quarter more rows (``cache.row_log``)."""
RECEIVED_ROUTE_VALUES = 4
"""int32 values that a route holds for each element of an exchange: the bag, the group
of elements for the same row, and for that group its slot and how to reach it."""
INDEX_BYTES = 40
"""Bytes of the key index of a cached storage for each slot: two ways of its directory,
a key and a slot each; the slot's key, when it was last read, and how often."""
STORED_KEY_BYTES = 21
"""Bytes of host memory for the key of a dynamic table's row that is stored there: the
key; three cells of a hash table that is a quarter to half full; whether it is held."""
ROUTED = 2
"""Batches whose routes exist at once: a step takes one, and makes that of the next."""
OWN_ROUTE_VALUES = 2
"""int32 values for each id that a device pools itself: the slot or element that it
reads, and its group."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """Memory of one device, in bytes, for a unit of each quantity of a storage."""

    workload: Workload

    @property
    def limit_bytes(self) -> float:
        limit_bytes = self.workload.fleet.device.memory_bytes * MEMORY_SHARE
        target_gb = self.workload.memory_gb
        return limit_bytes if target_gb is None else min(limit_bytes, 1e9 * target_gb)

    @property
    def activation_bytes(self) -> float:
        """Values that dense layers keep of forward, and their gradients, of the samples
        that go through them at once; where these are not all, the parameters' gradients
        by the samples before them, too."""
        workload = self.workload
        sample_bytes = workload.dense.sample_bytes(workload.fleet)
        if workload.micro_batches == 1:
            return sample_bytes * workload.device_batch
        samples = workload.device_batch / workload.micro_batches
        return sample_bytes * samples + workload.dense.gradient_bytes(workload.fleet)

    @property
    def stored_limit_bytes(self) -> np.ndarray:
        """``[STORED_TIERS]`` bytes of a node's host memory and disks that rows may
        take."""
        fleet = self.workload.fleet
        host_bytes = fleet.device.host_memory_bytes or math.inf
        disk_bytes = DISK_SHARE * (fleet.device.disk_memory_bytes or math.inf)
        return fleet.gpus_per_node * np.array([host_bytes, disk_bytes])

    def stored_bytes(self, candidates: Candidates) -> np.ndarray:
        """Returns ``[row shards]`` bytes of all rows of a column shard, if they have
        room elsewhere than on the device. A checkpoint brings those in slots there,
        too; a dynamic table that forgets rows has no others."""
        row_bytes = self.row_bytes(candidates.width, candidates.value_bytes)
        row_bytes = row_bytes + STORED_KEY_BYTES * candidates.dynamic
        of_slots = candidates.forgets[candidates.candidate]
        rows = np.where(of_slots, candidates.shard_slots, candidates.shard_rows)
        return (row_bytes * candidates.cached)[candidates.candidate] * rows

    def row_bytes(self, width: Any, value_bytes: Any = traffic.WORD_BYTES) -> Any:
        """Returns the bytes of a row's parameters, of ``value_bytes`` each, and of its
        optimizer state."""
        per_parameter, per_row = self.workload.state_values
        states = width * per_parameter + per_row
        return value_bytes * width + traffic.WORD_BYTES * states

    def rows_bytes(self, tables: Iterable[TableSpec]) -> int:
        """Returns the bytes of all rows of tables, wherever they are."""
        return sum(
            table.rows * self.row_bytes(table.dim, VALUE_BYTES[table.dtype])
            for table in tables
        )

    def of_storage(
        self, storage: StorageKind
    ) -> tuple[dict[Peak, float], dict[Peak, float]]:
        """Returns the bytes of a device for a unit of each peak of a storage, those it
        takes all the time and those it takes in the update: of a row, its slot, and in
        a cached storage its part of the key index; of an id of capacity for each
        device, its routes, and the row that comes back for it or its gradient, or of a
        partial sum a sample that or its gradient, sent and received; of an updated row
        its gradient."""
        workload, properties = self.workload, storage.of_cluster
        width, value_bytes = storage.width, traffic.WORD_BYTES * workload.devices
        update: dict[Peak, float] = {Peak.UPDATED: traffic.rows_bytes(1, width)}
        if properties.replicated:
            return {}, update
        squares = storage.split and workload.row_wise  # they come back the way
        values = RECEIVED_ROUTE_VALUES + storage.weighted + squares
        held: dict[Peak, float] = {
            Peak.ROWS: self.row_bytes(width, VALUE_BYTES[storage.dtype])
            + INDEX_BYTES * (storage.tier != "device"),
            Peak.IDS: ROUTED * values * value_bytes,
        }
        if not properties.pools_at_owner:
            return held, update | {Peak.IDS: 2 * width * value_bytes}
        sample_bytes = 2 * width * workload.device_batch
        update[Peak.SUMS] = sample_bytes * value_bytes
        if storage.of_exchange.staged:
            nodes = workload.fleet.nodes
            update[Peak.NODE] = sample_bytes * traffic.WORD_BYTES * nodes
        return held, update

    def everywhere_bytes(self, candidates: Candidates) -> np.ndarray:
        """Returns ``[2, candidates]`` bytes of each table on every device, in backward
        of the dense layers and in the update: its ids; the pooled rows of their bags or
        the gradients of those; if rows are pooled here, how; and if it is replicated,
        the whole table and, in the update, the buffer that sums its gradients. If rows
        are pooled here, kernels sum gradients of sequences from an array with all of
        the storage, which is gone when sums travel."""
        workload = self.workload
        per_sample = candidates.hotness * (1 + candidates.weighted)
        own_ids = candidates.hotness * candidates.column_shards
        own_ids = own_ids * ~candidates.pools_at_owner
        per_sample = per_sample + OWN_ROUTE_VALUES * own_ids
        ids_bytes = ROUTED * traffic.WORD_BYTES * per_sample
        pooled_bytes = candidates.embedding_bytes * candidates.bags * candidates.dim
        held_bytes = workload.device_batch * (ids_bytes + pooled_bytes)
        # With a flag for each row that says whether it was touched.
        gradient_bytes = traffic.rows_bytes(
            candidates.room_for_rows[candidates.first[:-1]], candidates.dim + 1
        )
        table_bytes = candidates.rows * self.row_bytes(
            candidates.dim, candidates.value_bytes
        )
        held_bytes = held_bytes + candidates.replicated * table_bytes
        update_bytes = held_bytes + candidates.replicated * gradient_bytes
        if workload.kernels != "xla":
            joined_bytes = workload.device_batch * pooled_bytes
            sent_rows = candidates.reduced(np.add, np.add(*candidates.sent_ids))
            sent_bytes = 2 * traffic.rows_bytes(sent_rows, candidates.dim)
            travelling_bytes = np.where(candidates.unique_ids, sent_bytes, 0.0)
            more_bytes = np.maximum(joined_bytes - travelling_bytes, 0.0)
            is_joined = candidates.sequence & ~candidates.pools_at_owner
            update_bytes = update_bytes + is_joined * more_bytes
        return np.stack([held_bytes, update_bytes])

    def shortage(self, least_bytes: float) -> str:
        """Says what is short of these bytes, which each device needs at least."""
        device, limit_bytes = self.workload.fleet.device, self.limit_bytes
        devices = self.workload.devices
        where = "the device" if devices == 1 else f"all {devices} devices"
        asked = limit_bytes < device.memory_bytes * MEMORY_SHARE
        room, least = bytes_text(limit_bytes), bytes_text(least_bytes)
        source = "the memory_gb asked for" if asked else f"{MEMORY_SHARE:.0%} of it"
        lacking = f"{bytes_text(least_bytes - limit_bytes)} short"
        if least_bytes <= limit_bytes:
            lacking = "and no plan was found that fits"
        return (
            f"memory is short on {where}: tables, optimizer state, exchange buffers "
            f"and dense layers need {least} or more on each, {device.name} has {room} "
            f"for them ({source}), {lacking}"
        )
