"""Placements for EMBark's system: its baseline, and what the planner makes of it.

With several nodes a table belongs to whole nodes, inside of which its rows are spread
over all GPUs (HugeCTR, ``benchmarks/embedding_collection/hugectr/sharding``). The
planner then places tables on nodes, as if each were one large device.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from embark_jax.fleet import Fleet
from embark_jax.planner.cost import traffic
from embark_jax.planner.search.candidates import ForcedPlacement
from embark_jax.planner.cost.model import StoragePrice
from embark_jax.planner.explore import best_plan
from embark_jax.planner.cost.rates import Rates
from embark_jax.planner.search import Search
from embark_jax.planner.layout.storage import Cluster, Placement, StorageKind
from embark_jax.planner.request.workload import Shape, Workload
from embark_jax.simulator.embark_step import (
    FLOAT_BYTES,
    HALF_BYTES,
    INDEX_BYTES,
    index_bytes,
    update_bytes,
)
from embark_jax.tables import FeatureSpec, TableSpec

TABLE_BYTES = 60e9
"""For tables on a GPU, at most (HugeCTR, ``benchmarks/embedding_collection``)."""


def table_row_wise(tables: Sequence[TableSpec], workload: Workload) -> list[Placement]:
    """The baseline: tables go around the nodes, each with its rows over all GPUs of
    one node, all in RB. A table too large for a node takes the next ones, too."""
    fleet = workload.fleet
    per_parameter = 1 + workload.state_values[0]
    placements = []
    for i, table in enumerate(tables):
        table_bytes = table.rows * table.dim * FLOAT_BYTES * per_parameter
        nodes = math.ceil(table_bytes / TABLE_BYTES / fleet.gpus_per_node)
        first = i % fleet.nodes * fleet.gpus_per_node
        owners = first + np.arange(min(nodes, fleet.nodes) * fleet.gpus_per_node)
        devices = tuple(map(int, owners % fleet.devices))
        placements.append(Placement(table, "rb", len(devices), devices=devices))
    return placements


def planned(
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    workload: Workload,
    clusters: tuple[Cluster, ...],
    key_bytes: int,
    forced: Mapping[str, Cluster] | None = None,
) -> list[Placement]:
    """Placements that balance the time of every device, or node, by ``SystemModel``.

    Args:
      tables, features: the model.
      workload: batch, skew and optimizer on the real fleet.
      clusters: to choose among.
      key_bytes: of an id.
      forced: clusters of tables, by name, that are not to be chosen.
    """
    model = SystemModel(workload, clusters, key_bytes)
    search = Search(
        tables,
        features,
        {name: ForcedPlacement(cluster) for name, cluster in (forced or {}).items()},
        dataclasses.replace(workload, fleet=model.bins),
        model,
    )
    _, placing, _ = best_plan([search])
    return [over_gpus(each, model.gpus) for each in search.placements(placing)]


def over_gpus(placement: Placement, gpus: int) -> Placement:
    """A placement on nodes, with each row shard spread over its node's GPUs: row r
    goes to GPU ``r // row_shards % gpus``."""
    if placement.cluster == "dp":
        return placement
    columns, rows = placement.column_shards, placement.row_shards
    owners = np.array(placement.devices).reshape(rows, columns)
    spread = owners[None] * gpus + np.arange(gpus)[:, None, None]
    return dataclasses.replace(
        placement, row_shards=rows * gpus, devices=tuple(map(int, spread.reshape(-1)))
    )


@dataclasses.dataclass(frozen=True)
class SystemModel:
    """A ``planner.cost.CostModel`` of EMBark's system, where nothing overlaps; it
    counts as ``EmbarkStep`` does, without latencies.

    Tables are placed on *bins*: GPUs in a fleet of one node, else nodes.

    Attributes:
      workload: on the real fleet.
      clusters: that it may choose among.
      key_bytes: of an id.
    """

    workload: Workload
    clusters: tuple[Cluster, ...]
    key_bytes: int
    name = "embark system"

    @property
    def gpus(self) -> int:
        """Of a bin."""
        fleet = self.workload.fleet
        return fleet.gpus_per_node if fleet.nodes > 1 else 1

    @property
    def bins(self) -> Fleet:
        """The fleet to plan for; of its devices only the memory counts."""
        fleet = self.workload.fleet
        if self.gpus == 1:
            return fleet
        whole = dataclasses.replace(
            fleet.device,
            name=f"{self.gpus} {fleet.device.name}",
            memory_bytes=self.gpus * fleet.device.memory_bytes,
        )
        return dataclasses.replace(fleet, device=whole, gpus_per_node=1)

    def storage_price(self, storage: StorageKind) -> StoragePrice:
        return StoragePrice()

    def owner_ms(self, shape: Shape) -> np.ndarray:
        workload = self.workload
        if shape.cluster == "dp":
            return np.zeros(1)
        touched = shape.batch_unique(workload) * shape.width
        moved_bytes = touched * (FLOAT_BYTES + update_bytes(workload))
        if shape.cluster == "ub":
            ids = workload.devices * self._unique(shape)
            ids = ids * shape.shard_rows / shape.use.rows
            row_bytes = shape.width * HALF_BYTES
            sent_bytes = ids * (self.key_bytes + 2 * row_bytes)
            moved_bytes += ids * (shape.width * FLOAT_BYTES + 2 * row_bytes)
            sums_ms = 0.0
        else:
            ids = shape.batch_ids(workload)
            bags = workload.batch_size * shape.use.lanes
            # Each GPU of a node makes sums of its own, which are added up on their way.
            sums_bytes = HALF_BYTES * bags * shape.width
            sent_bytes = ids * self.key_bytes + bags * self.gpus * INDEX_BYTES
            moved_bytes += ids * shape.width * (FLOAT_BYTES + HALF_BYTES)
            moved_bytes += ids * 4 * INDEX_BYTES + 4 * self.gpus * sums_bytes
            sums_ms = self._sums_ms(sums_bytes)
        moved_bytes += ids * (4 * self.key_bytes + index_bytes(self.key_bytes))
        fleet = workload.fleet
        sent = traffic.all_to_all_bytes(
            sent_bytes / self.gpus,  # pyright: ignore[reportArgumentType] an array
            fleet.nodes,
            fleet.gpus_per_node,
        )
        rates = Rates(fleet)
        return rates.memory_ms(moved_bytes / self.gpus) + rates.links_ms(sent) + sums_ms

    def everywhere_ms(self, shape: Shape) -> float:
        use, workload, rates = shape.use, self.workload, Rates(self.workload.fleet)
        ids = workload.device_batch * use.hotness * use.filled
        match shape.cluster:
            case "rb":
                return 0.0
            case "ub":
                pooled_bytes = 2 * ids * use.dim * HALF_BYTES
                gathered_bytes = self._unique(shape) * use.dim
                gathered_bytes *= FLOAT_BYTES + HALF_BYTES
                return rates.memory_ms(pooled_bytes + gathered_bytes)
            case "dp":
                values = use.rows * use.dim
                moved_bytes = ids * use.dim * (FLOAT_BYTES + HALF_BYTES)
                moved_bytes += ids * index_bytes(self.key_bytes)
                moved_bytes += values * (FLOAT_BYTES + update_bytes(workload))
                fleet = workload.fleet
                sent = traffic.all_reduce_bytes(
                    values * FLOAT_BYTES, fleet.nodes, fleet.gpus_per_node
                )
                return rates.memory_ms(moved_bytes) + float(rates.links_ms(sent))

    def _unique(self, shape: Shape) -> float:
        """Ids of the table that a device sends, each once."""
        use = shape.use
        own_ids = self.workload.device_batch * use.hotness * use.filled
        return use.skew.expected_unique(use.rows, own_ids)

    def _sums_ms(self, sums_bytes: float) -> float:
        """Sums there and gradients back: inside the node, then along rails."""
        fleet, rates = self.workload.fleet, Rates(self.workload.fleet)
        inside = 2 * sums_bytes * (fleet.gpus_per_node - 1) / fleet.gpus_per_node
        between = 2 * sums_bytes / self.gpus * (fleet.nodes - 1) / fleet.nodes
        inside_ms = rates.links_ms(traffic.LinkBytes(inside, 0.0))
        return float(inside_ms + rates.links_ms(traffic.LinkBytes(0.0, between)))
