"""The cost model: what a shape of a table, and where its shards lie, cost in a step.

A cost model is anything with the attributes of ``CostModel``. It prices

- each shard, for the device that owns it (``owner_ms``): no padding, so that devices
  differ;
- what every device does for a table, wherever its shards are (``everywhere_ms``);
- each storage: a fixed part, and so much for each piece and each id of its exchange
  buffers, which are as large on every device as on its fullest, or in its fullest node
  (``storage_price``).

The predicted time of a step is then ::

    max over devices (sum of owner_ms of its shards)
    + sum over tables of everywhere_ms
    + sum over storages of (fixed_ms + piece_ms × most pieces
                            + node_piece_ms × most of a node + id_ms × capacity)

which treats phases as one after the other: nothing overlaps, so it is the time of the
embeddings' share of a step at most; the dense layers are not in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Protocol, get_args

import numpy as np

from embark_jax.planner import traffic
from embark_jax.planner.collectives import (
    Collective,
    replicated_collectives,
    replicated_sums,
    storage_collectives,
    summed_whole,
)
from embark_jax.planner.rates import Rates
from embark_jax.planner.storage import Cluster, StorageKind
from embark_jax.planner.work import Unit, Work
from embark_jax.planner.workload import Shape, Workload


@dataclasses.dataclass(frozen=True)
class StoragePrice:
    """What the padded exchange of one storage costs every device.

    Attributes:
      fixed_ms: if any table lies in it.
      piece_ms: for each (lane, row shard) of the device that holds the most.
      node_piece_ms: for each lane of the node that holds shards for the most.
      id_ms: for each id that a device can send to another: the capacity.
    """

    fixed_ms: float = 0.0
    piece_ms: float = 0.0
    node_piece_ms: float = 0.0
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
class ProgramModel:
    """Prices what the compiled train step really moves, padding included.

    Attributes:
      workload: what is planned for.
    """

    workload: Workload
    name = "program"

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        return ("dp", "rb", "ub")

    def storage_work(self, storage: StorageKind) -> Iterator[tuple[Unit, Work]]:
        """What the exchanges of a storage ask of every device, for a unit of each."""
        workload = self.workload
        if storage.cluster == "dp":
            touched = Collective("all_reduce", "id exchange", "touched rows")
            yield "storage", self._latency(touched)
            for kind, carries in replicated_sums(workload.wire.gradients):
                summed = Collective(kind, "gradient exchange", carries)
                yield "storage", self._latency(summed)
            return
        for each in storage_collectives(
            storage,
            workload.fleet.nodes,
            workload.fleet.gpus_per_node,
            workload.device_batch,
            workload.row_wise,
            workload.wire,
        ):
            yield "storage", self._latency(each)
            if each.fixed_bytes:
                yield "storage", self._moved(each, each.fixed_bytes)
            if each.piece_bytes:
                yield "piece", self._moved(each, each.piece_bytes)
            if each.node_piece_bytes:
                yield "node_piece", self._moved(each, each.node_piece_bytes)
            if each.id_bytes:
                yield "id", self._moved(each, each.id_bytes)
        # A place of capacity for each device: what arrives is grouped by row.
        places = workload.devices
        yield "id", Work("sort", "received slots", _grouping_bytes(places))
        if storage.cluster == "rb":
            unpacked_bytes = traffic.index_bytes(places, traffic.UNPACKED_VALUES)
            yield "id", Work("id exchange", "unpacked", unpacked_bytes)
        place_bytes = traffic.rows_bytes(places, storage.width)
        if storage.cluster == "ub":
            yield "id", Work("lookup", "rows", place_bytes)
        if workload.row_wise:  # of row gradients, with those that are unused
            yield "id", Work("gradients", "squares", place_bytes)

    def owner_work(self, shape: Shape) -> Iterator[Work]:
        """What a shape asks of the owners of its row shards, in each column shard."""
        if shape.cluster == "dp":
            return
        if shape.cluster == "rb":
            pooled_bytes = traffic.rows_bytes(1, shape.width)
            pooled_bytes = pooled_bytes * shape.batch_ids(self.workload)
            yield Work("lookup", "rows", pooled_bytes)
            yield Work("gradients", "bag gradients", pooled_bytes)
        unique = shape.batch_unique(self.workload)
        summed_bytes = traffic.rows_bytes(1, shape.width) * unique
        yield Work("gradients", "row gradients", summed_bytes)
        yield self._update(shape, unique)

    def everywhere_work(self, shape: Shape) -> Iterator[Work]:
        """What a shape asks of every device, wherever its shards are."""
        use, workload = shape.use, self.workload
        ids = workload.device_batch * use.hotness
        bags = workload.device_batch * use.lanes
        yield Work("lookup", "pooled rows", traffic.rows_bytes(bags, use.dim))
        if shape.cluster != "rb":
            pooled_bytes = traffic.rows_bytes(ids * use.filled, use.dim)
            yield Work("lookup", "rows", pooled_bytes)
            yield Work("gradients", "bag gradients", pooled_bytes)
        if shape.cluster == "rb":
            keys = ids * shape.column_shards
            sorted_bytes = traffic.sort_bytes(keys, traffic.NARROW_KEY_BYTES)
            sorted_bytes += traffic.index_bytes(keys, traffic.BUCKET_VALUES)
            yield Work("sort", "ids", sorted_bytes)
        elif shape.cluster == "ub":
            keys = ids * shape.column_shards
            sorted_bytes = traffic.sort_bytes(keys)
            sorted_bytes += traffic.index_bytes(keys, traffic.UNIQUE_VALUES)
            yield Work("sort", "ids", sorted_bytes + _grouping_bytes(keys))
        else:
            batch_ids = workload.batch_size * use.hotness
            for each in replicated_collectives(
                use.rows,
                use.dim,
                batch_ids,
                workload.devices,
                workload.wire.gradients,
            ):
                yield self._moved(each, each.fixed_bytes)
            yield Work("sort", "slots", _grouping_bytes(ids))
            if workload.devices > 1 and not summed_whole(use.rows, batch_ids):
                yield Work("sort", "gathered slots", _grouping_bytes(batch_ids))
            yield self._update(shape, float(shape.batch_unique(workload)[0]))

    def _update(self, shape: Shape, rows: float | np.ndarray) -> Work:
        row_bytes = traffic.update_rows_bytes(
            1.0, shape.width, *self.workload.state_values
        )
        return Work("update", "rows", row_bytes * rows)

    def storage_price(self, storage: StorageKind) -> StoragePrice:
        ms = dict.fromkeys(get_args(Unit), 0.0)
        for unit, work in self.storage_work(storage):
            ms[unit] += float(self.work_ms(work))
        return StoragePrice(ms["storage"], ms["piece"], ms["node_piece"], ms["id"])

    def owner_ms(self, shape: Shape) -> np.ndarray:
        total_ms = np.zeros(shape.row_shards)
        for work in self.owner_work(shape):
            total_ms += self.work_ms(work)
        return total_ms

    def everywhere_ms(self, shape: Shape) -> float:
        return float(sum(self.work_ms(work) for work in self.everywhere_work(shape)))

    def work_ms(self, work: Work) -> float | np.ndarray:
        """Memory, links and latency one after the other."""
        rates = Rates(self.workload.fleet)
        link_ms = float(rates.links_ms(self.link_bytes(work)))
        return rates.memory_ms(work.memory_bytes) + link_ms + work.latency_ms

    def link_bytes(self, work: Work) -> traffic.LinkBytes:
        """What a device sends."""
        if work.collective is None:
            return traffic.LinkBytes(0.0, 0.0)
        fleet = self.workload.fleet
        nodes = 1 if work.reach == "node" else fleet.nodes
        gpus_per_node = 1 if work.reach == "rail" else fleet.gpus_per_node
        sent_bytes = {
            "all_to_all": traffic.all_to_all_bytes,
            "all_reduce": traffic.all_reduce_bytes,
            "all_gather": traffic.all_gather_bytes,
        }[work.collective]
        return sent_bytes(work.buffer_bytes, nodes, gpus_per_node)

    def _moved(self, collective: Collective, buffer_bytes: float) -> Work:
        return Work(
            collective.phase,
            collective.carries,
            traffic.buffer_memory_bytes(buffer_bytes),
            collective.kind,
            collective.reach,
            buffer_bytes,
        )

    def _latency(self, collective: Collective) -> Work:
        rates = Rates(self.workload.fleet)
        latency_us = rates.reduce_us
        if collective.kind == "all_to_all":
            inside = collective.reach == "node"
            latency_us = rates.node_exchange_us if inside else rates.exchange_us
        return Work(
            collective.phase,
            collective.carries,
            collective=collective.kind,
            reach=collective.reach,
            latency_ms=latency_us / 1e3,
        )


def _grouping_bytes(ids: float) -> float:
    """In memory, of sorting ids by row and finding where the rows begin."""
    return traffic.sort_bytes(ids) + traffic.index_bytes(ids, traffic.GROUP_VALUES)


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
