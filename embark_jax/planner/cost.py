"""The cost model: what a shape of a table, and where its shards lie, cost in a step.

A cost model is anything with the attributes of ``CostModel``. It prices

- each shard, for the device that owns it (``owner_ms``): no padding, so that devices
  differ;
- what every device does for a table, wherever its shards are (``everywhere_ms``);
- each storage: a fixed part, and so much for each piece and each id of its exchange
  buffers, which are as large on every device as on its fullest (``storage_price``).

The predicted time of a step is then ::

    max over devices (sum of owner_ms of its shards)
    + sum over tables of everywhere_ms
    + sum over storages of (fixed_ms + piece_ms × most pieces + id_ms × capacity)

which treats phases as one after the other: nothing overlaps, so it is the time of the
embeddings' share of a step at most; the dense layers are not in it.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol

import numpy as np

from embark_jax.planner import traffic
from embark_jax.planner.storage import Cluster, StorageKind
from embark_jax.planner.workload import Shape, Workload


@dataclasses.dataclass(frozen=True)
class StoragePrice:
    """What the padded exchange of one storage costs every device.

    Attributes:
      fixed_ms: if any table lies in it.
      piece_ms: for each (lane, row shard) of the device that holds the most.
      id_ms: for each id that a device can send to another: the capacity.
    """

    fixed_ms: float = 0.0
    piece_ms: float = 0.0
    id_ms: float = 0.0


class CostModel(Protocol):
    """What the search and the bound need to know of costs; none may be negative."""

    @property
    def name(self) -> str: ...

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        """Those it can price."""
        ...

    def storage_price(self, storage: StorageKind) -> StoragePrice: ...

    def owner_ms(self, shape: Shape) -> np.ndarray:
        """``[row_shards]`` for the owner of one column shard of each row shard."""
        ...

    def everywhere_ms(self, shape: Shape) -> float:
        """For every device alike."""
        ...


@dataclasses.dataclass(frozen=True)
class Efficiency:
    """What share of the datasheet's figures a program achieves, and latencies.

    One set for all models and devices.

    Attributes:
      memory: FBGEMM's scatter-add on H100, 2.54e12 of 3.35e12 B/s
        (https://github.com/pytorch/FBGEMM/pull/3993); its row gather achieves 0.79.
      link: of NVLink and network, an assumption until measured.
      launch_us, node_hop_us, network_hop_us: of a collective, and of each hop it takes;
        base and hop latencies of rings, protocol Simple, in NCCL's own tuning model
        (https://github.com/NVIDIA/nccl/blob/v2.21.5-1/src/graph/tuning.cc).
    """

    memory: float = 0.76
    link: float = 0.8
    launch_us: float = 8.4
    node_hop_us: float = 3.4
    network_hop_us: float = 14.0


@dataclasses.dataclass(frozen=True)
class ProgramModel:
    """Prices what the compiled train step really moves, padding included.

    Attributes:
      workload: what is planned for.
      weighted: whether ids travel with weights.
      efficiency: achieved shares of the hardware's figures.
    """

    workload: Workload
    weighted: bool = False
    efficiency: Efficiency = Efficiency()
    name = "program"

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        return ("dp", "rb", "ub")

    def storage_price(self, storage: StorageKind) -> StoragePrice:
        devices, batch = self.workload.devices, self.workload.device_batch
        weights = 1 if self.weighted else 0
        capacity_check = self._reduce_latency_ms()
        width = storage.width
        match storage.cluster:
            case "dp":  # flags and gradients of rows
                return StoragePrice(2 * self._reduce_latency_ms() + capacity_check)
            case "rb":  # slots, bags, weights; partial sums, gradients
                exchanges = 4 + weights
                ids = traffic.id_buffer_bytes(2 + weights, devices)
                sums = traffic.piece_buffer_bytes(width, batch, devices)
                return StoragePrice(
                    exchanges * self._exchange_latency_ms() + capacity_check,
                    piece_ms=2 * self._exchange_ms(sums),
                    id_ms=self._exchange_ms(ids) + self._sort_ms(devices),
                )
            case "ub":  # slots; rows, gradients
                ids = traffic.id_buffer_bytes(1, devices)
                rows = traffic.row_buffer_bytes(width, devices)
                return StoragePrice(
                    3 * self._exchange_latency_ms() + capacity_check,
                    id_ms=self._exchange_ms(ids)
                    + self._sort_ms(devices)
                    + 2 * self._exchange_ms(rows),
                )

    def owner_ms(self, shape: Shape) -> np.ndarray:
        if shape.cluster == "dp":
            return np.zeros(1)
        ids = shape.batch_ids(self.workload)
        unique = shape.batch_unique(self.workload)
        moved_bytes = (
            traffic.update_rows_bytes(1.0, shape.width, *self.workload.state_values)
            * unique
        )
        if shape.cluster == "rb":
            # Forward reads a row for each id, backward the gradient of its bag.
            moved_bytes = (
                moved_bytes + 2 * traffic.read_rows_bytes(1, shape.width) * ids
            )
        return self._memory_ms(moved_bytes)

    def everywhere_ms(self, shape: Shape) -> float:
        use = shape.use
        ids = self.workload.device_batch * use.hotness
        # Rows for pooling here, and gradients of bags for rows.
        pooled_here_bytes = 2 * traffic.read_rows_bytes(ids, use.dim)
        if shape.cluster != "dp":
            moved_bytes = traffic.sort_bytes(ids * shape.column_shards)
            if shape.cluster == "ub":
                moved_bytes += pooled_here_bytes
            return float(self._memory_ms(moved_bytes))
        rows = min(use.rows, self.workload.batch_size * use.hotness)
        reduced_bytes = traffic.replicated_gradient_bytes(rows, use.dim)
        moved_bytes = (
            pooled_here_bytes
            + traffic.buffer_memory_bytes(reduced_bytes)
            + traffic.update_rows_bytes(rows, use.dim, *self.workload.state_values)
        )
        return float(self._memory_ms(moved_bytes)) + self._reduce_ms(reduced_bytes)

    def _memory_ms(self, moved_bytes):
        rate = self.workload.fleet.device.memory_bytes_per_s * self.efficiency.memory
        return 1e3 * moved_bytes / rate

    def _sort_ms(self, keys: float) -> float:
        return float(self._memory_ms(traffic.sort_bytes(keys)))

    def _links_ms(self, sent: traffic.LinkBytes) -> float:
        """Both kinds of links work at once."""
        device = self.workload.fleet.device
        return (1e3 / self.efficiency.link) * max(
            sent.node_link / device.node_link_bytes_per_s,
            sent.network / device.network_bytes_per_s,
        )

    def _exchange_ms(self, buffer_bytes: float) -> float:
        """An all-to-all, with what it costs in memory on both of its ends."""
        fleet = self.workload.fleet
        sent = traffic.all_to_all_bytes(buffer_bytes, fleet.nodes, fleet.gpus_per_node)
        memory_bytes = traffic.buffer_memory_bytes(buffer_bytes)
        return self._links_ms(sent) + float(self._memory_ms(memory_bytes))

    def _reduce_ms(self, buffer_bytes: float) -> float:
        fleet = self.workload.fleet
        return self._links_ms(
            traffic.all_reduce_bytes(buffer_bytes, fleet.nodes, fleet.gpus_per_node)
        )

    def _exchange_latency_ms(self) -> float:
        """A launch and one hop: messages to all devices leave at once."""
        fleet, efficiency = self.workload.fleet, self.efficiency
        if fleet.devices == 1:
            return 0.0
        hop_us = efficiency.node_hop_us
        if fleet.nodes > 1:
            hop_us = efficiency.network_hop_us
        return (efficiency.launch_us + hop_us) / 1e3

    def _reduce_latency_ms(self) -> float:
        """A launch, and a tree over nodes and over the GPUs of each, up and down."""
        fleet, efficiency = self.workload.fleet, self.efficiency
        if fleet.devices == 1:
            return 0.0
        up_us = efficiency.network_hop_us * math.ceil(math.log2(fleet.nodes))
        up_us += efficiency.node_hop_us * math.ceil(math.log2(fleet.gpus_per_node))
        return (efficiency.launch_us + 2 * up_us) / 1e3


@dataclasses.dataclass(frozen=True)
class EmbarkModel:
    """The cost that EMBark's released planner searches with, for RB shards alone.

    ``W · B · Σ hotness · width / row shards + R · B · Σ width`` over the shards of a
    device, B the global batch; between nodes the first is divided by 8, the second
    multiplied by 1.5 / 8 (HugeCTR, ``benchmarks/embedding_collection``). W and R weigh
    bytes of memory and of links against each other; a weighted byte is taken to last as
    long as one of device memory. No skew, ids, latency or padding.
    """

    workload: Workload
    memory_weight: float = 4.0
    link_weight: float = 50.0
    """R; published values are 50 to 80."""
    name = "embark"

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        return ("rb",)

    def storage_price(self, storage: StorageKind) -> StoragePrice:
        return StoragePrice()

    def owner_ms(self, shape: Shape) -> np.ndarray:
        hierarchical = self.workload.fleet.nodes > 1
        lookup_share, link_share = (1 / 8, 1.5 / 8) if hierarchical else (1.0, 1.0)
        ids = shape.use.hotness / shape.row_shards
        weighted_bytes = (
            self.workload.batch_size
            * shape.width
            * (
                self.memory_weight * lookup_share * ids
                + self.link_weight * link_share * shape.use.lanes
            )
        )
        rate = self.workload.fleet.device.memory_bytes_per_s
        return np.full(shape.row_shards, 1e3 * weighted_bytes / rate)

    def everywhere_ms(self, shape: Shape) -> float:
        return 0.0
