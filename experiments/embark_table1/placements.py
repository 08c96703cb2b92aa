"""Placements for EMBark's system: its baseline, and placements that the planner finds.

With several nodes a table belongs to whole nodes, inside of which its rows are spread
over all GPUs (HugeCTR, ``benchmarks/embedding_collection/hugectr/sharding``). The
planner then places tables on nodes, as if each were one large device.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from embark_jax.planner.cost.model import OWNER_PHASES, StoragePrice
from embark_jax.planner.cost.rates import Rates
from embark_jax.planner.cost.shapes import Shapes
from embark_jax.planner.request.workload import Workload
from embark_jax.planner.search.instance import make_instance
from embark_jax.planner.search.solve import solve
from embark_jax.plans import traffic
from embark_jax.plans.fleet import Fleet
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.options import Cluster
from embark_jax.plans.storage import Placement, StorageKind
from embark_jax.plans.tables import FeatureSpec, TableSpec
from experiments.embark_table1.step import (
    FLOAT_BYTES,
    HALF_BYTES,
    INDEX_BYTES,
    index_bytes,
    update_bytes,
)

TABLE_BYTES = 60e9
"""Most bytes of tables on a GPU (HugeCTR, ``benchmarks/embedding_collection``)."""


def table_row_wise(tables: Sequence[TableSpec], workload: Workload) -> list[Placement]:
    """The baseline: tables go to nodes round robin, each with its rows over all GPUs of
    one node, all in RB. A table too large for one node also takes the next nodes."""
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
      clusters: clusters to choose among.
      key_bytes: bytes of an id.
      forced: clusters of tables by name, which are fixed.
    """
    model = SystemModel(workload, clusters, key_bytes)
    instance = make_instance(
        tables,
        features,
        {name: ForcedPlacement(cluster) for name, cluster in (forced or {}).items()},
        dataclasses.replace(workload, fleet=model.bins),
        model,
    )
    found = solve(instance).assignment
    reasons = [""] * len(tables)
    return [over_gpus(each, model.gpus) for each in found.placements(reasons)]


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
    """A ``planner.cost.CostModel`` of EMBark's system, in which nothing overlaps. It
    counts like ``EmbarkStep``, without latencies.

    Tables are placed on *bins*: GPUs in a fleet of one node, else nodes.

    Attributes:
      workload: the workload on the real fleet.
      clusters: clusters that it may choose among.
      key_bytes: bytes of an id.
    """

    workload: Workload
    clusters: tuple[Cluster, ...]
    key_bytes: int
    name = "embark system"

    @property
    def gpus(self) -> int:
        """Number of GPUs in a bin."""
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

    def owner_ms(self, shapes: Shapes) -> np.ndarray:
        """All time is in the last phase: this search has no other barrier."""
        workload, width = self.workload, shapes.width[shapes.shape]
        if shapes.cluster == "dp":
            return np.zeros((len(OWNER_PHASES), len(shapes.shape)))
        touched = shapes.batch_unique * width
        moved_bytes = touched * (FLOAT_BYTES + update_bytes(workload))
        if shapes.cluster == "ub":
            ids = (workload.devices * self._unique(shapes) / shapes.rows)[shapes.shape]
            ids = ids * shapes.shard_rows
            row_bytes = width * HALF_BYTES
            sent_bytes = ids * (self.key_bytes + 2 * row_bytes)
            moved_bytes += ids * (width * FLOAT_BYTES + 2 * row_bytes)
            sums_ms = 0.0
        else:
            ids = shapes.batch_ids
            bags = workload.batch_size * shapes.bags[shapes.shape]
            # Each GPU of a node makes its own sums, which are added up on their way.
            sums_bytes = HALF_BYTES * bags * width
            sent_bytes = ids * self.key_bytes + bags * self.gpus * INDEX_BYTES
            moved_bytes += ids * width * (FLOAT_BYTES + HALF_BYTES)
            moved_bytes += ids * 4 * INDEX_BYTES + 4 * self.gpus * sums_bytes
            sums_ms = self._sums_ms(sums_bytes)
        moved_bytes += ids * (4 * self.key_bytes + index_bytes(self.key_bytes))
        fleet = workload.fleet
        sent = traffic.all_to_all_bytes(
            sent_bytes / self.gpus, fleet.nodes, fleet.gpus_per_node
        )
        rates = Rates(fleet)
        ms = rates.memory_ms(moved_bytes / self.gpus) + rates.links_ms(sent) + sums_ms
        return np.stack([np.zeros_like(ms), np.zeros_like(ms), ms])

    def everywhere_ms(self, shapes: Shapes) -> np.ndarray:
        workload, rates = self.workload, Rates(self.workload.fleet)
        ids = workload.device_batch * shapes.hotness * shapes.filled
        match shapes.cluster:
            case "rb":
                return np.zeros(len(shapes))
            case "ub":
                pooled_bytes = 2 * ids * shapes.dim * HALF_BYTES
                gathered_bytes = self._unique(shapes) * shapes.dim
                gathered_bytes *= FLOAT_BYTES + HALF_BYTES
                return rates.memory_ms(pooled_bytes + gathered_bytes)
            case "dp":
                values = shapes.rows * shapes.dim
                moved_bytes = ids * shapes.dim * (FLOAT_BYTES + HALF_BYTES)
                moved_bytes += ids * index_bytes(self.key_bytes)
                moved_bytes += values * (FLOAT_BYTES + update_bytes(workload))
                fleet = workload.fleet
                sent = traffic.all_reduce_bytes(
                    values * FLOAT_BYTES, fleet.nodes, fleet.gpus_per_node
                )
                return rates.memory_ms(moved_bytes) + rates.links_ms(sent)

    def _unique(self, shapes: Shapes) -> np.ndarray:
        """``[shapes]`` number of unique ids of the table that a device sends."""
        return shapes.expected_unique(self.workload.device_batch)

    def _sums_ms(self, sums_bytes: np.ndarray) -> np.ndarray:
        """Time to send sums and return gradients: inside the node, then along rails."""
        fleet, rates = self.workload.fleet, Rates(self.workload.fleet)
        inside = 2 * sums_bytes * (fleet.gpus_per_node - 1) / fleet.gpus_per_node
        between = 2 * sums_bytes / self.gpus * (fleet.nodes - 1) / fleet.nodes
        inside_ms = rates.links_ms(traffic.LinkBytes(inside, 0.0))
        return inside_ms + rates.links_ms(traffic.LinkBytes(0.0, between))
