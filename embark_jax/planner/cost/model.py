"""Cost models: the cost of a step's work, in milliseconds.

A cost model is anything with the attributes of ``CostModel``. It prices

- each storage (``StoragePrice``): a fixed part, and a price for a unit of each peak;
- each shard, for the device that owns it (``owner_ms``), in three phases;
- the work of every device for a table, wherever its shards are (``everywhere_ms``).

``objective.py`` makes the time of a step from these prices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Protocol, get_args

import numpy as np

from embark_jax.planner.cost.rates import Rates
from embark_jax.planner.cost.shapes import Shapes
from embark_jax.planner.cost.work import Unit, Work
from embark_jax.planner.request.workload import Workload
from embark_jax.plans import traffic
from embark_jax.plans.collectives import (
    Collective,
    replicated_collectives,
    replicated_sums,
    storage_collectives,
    summed_whole,
)
from embark_jax.plans.options import Cluster
from embark_jax.plans.storage import StorageKind

OWNER_PHASES = "lookup", "gradients", "update"
"""Phases in which owners work on their own shards. Lookup and gradients of a storage
lie between its exchanges; the update of all follows the last exchange of a step."""


@dataclasses.dataclass(frozen=True)
class StoragePrice:
    """The cost of one storage to a step.

    Attributes:
      fixed_ms: time if any table lies in it.
      sum_ms: time for each partial sum a sample of the device that makes the most.
      node_sum_ms: time for each partial sum a sample of the node that makes the most,
        added up over its devices.
      id_ms: time for each id that a device can send to another: the capacity.
    """

    fixed_ms: float = 0.0
    sum_ms: float = 0.0
    node_sum_ms: float = 0.0
    id_ms: float = 0.0


class CostModel(Protocol):
    """The costs that objective and search need to know; none may be negative."""

    @property
    def name(self) -> str: ...

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        """Clusters that it can price."""
        ...

    def storage_price(self, storage: StorageKind) -> StoragePrice: ...

    def owner_ms(self, shapes: Shapes) -> np.ndarray:
        """Returns ``[3, row shards]`` time in ``OWNER_PHASES`` of the owner of one
        column shard of each row shard."""
        ...

    def everywhere_ms(self, shapes: Shapes) -> np.ndarray:
        """Returns ``[shapes]`` time of every device alike."""
        ...


@dataclasses.dataclass(frozen=True)
class ProgramModel:
    """Prices what the compiled train step really moves, padding included.

    Attributes:
      workload: circumstances of the plan.
    """

    workload: Workload
    name = "program"

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        return ("dp", "rb", "ub")

    def storage_work(self, storage: StorageKind) -> Iterator[tuple[Unit, Work]]:
        """Yields the work of every device in a storage's exchanges, for a unit of
        each."""
        workload = self.workload
        if storage.cluster == "dp":
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
            if each.sum_bytes:
                yield "sum", self._moved(each, each.sum_bytes)
            if each.node_sum_bytes:
                yield "node_sum", self._moved(each, each.node_sum_bytes)
            if each.id_bytes:
                yield "id", self._moved(each, each.id_bytes)
        # One id of capacity for each device: what arrives is sorted by row.
        places = workload.devices
        values = traffic.RECEIVED_VALUES[storage.cluster]
        yield "id", Work("sort", "received slots", _sorted_bytes(places, values))
        place_bytes = traffic.rows_bytes(places, storage.width)
        if storage.cluster == "ub":
            yield "id", Work("lookup", "rows", place_bytes)
        if storage.split and workload.row_wise:
            # A kernel sums row gradients of whole rows where it updates them. These
            # have an array of their own, which is zeroed, squared and read.
            yield "id", Work("gradients", "row gradients", 3 * place_bytes)
            squares_bytes = traffic.index_bytes(places, traffic.SQUARE_VALUES)
            yield "id", Work("gradients", "squares", squares_bytes)

    def owner_work(self, shapes: Shapes) -> Iterator[Work]:
        """Yields the work of the owners of row shards, in each column shard."""
        row_bytes = traffic.rows_bytes(1, shapes.width)[shapes.shape]
        if shapes.cluster == "rb":  # owners pool
            read_bytes = traffic.rows_bytes(1, shapes.width, shapes.value_bytes)
            yield Work("lookup", "rows", read_bytes[shapes.shape] * shapes.batch_ids)
            yield Work("gradients", "bag gradients", row_bytes * shapes.batch_ids)
        if self.workload.row_wise:
            split = (shapes.column_shards > 1)[shapes.shape]
            touched_bytes = row_bytes * split * shapes.batch_unique
            yield Work("gradients", "row gradients", touched_bytes)
        yield self._update(shapes, shapes.shape)

    def _update(self, shapes: Shapes, shape: np.ndarray) -> Work:
        """Returns the work of updating the touched rows of shapes, one or several
        times each."""
        row_bytes = traffic.update_rows_bytes(
            1, shapes.width, *self.workload.state_values, shapes.value_bytes
        )
        return Work("update", "rows", row_bytes[shape] * shapes.batch_unique)

    def everywhere_work(self, shapes: Shapes) -> Iterator[Work]:
        """Yields the work of every device, wherever the shards are."""
        workload = self.workload
        ids = workload.device_batch * shapes.hotness
        bags = workload.device_batch * shapes.bags
        yield Work("lookup", "pooled rows", traffic.rows_bytes(bags, shapes.dim))
        if shapes.cluster != "rb":
            pooled = ids * shapes.filled, shapes.dim
            # Rows of UB have arrived as float32.
            each_bytes = traffic.VALUE_BYTES
            if shapes.cluster == "dp":
                each_bytes = shapes.value_bytes
            yield Work("lookup", "rows", traffic.rows_bytes(*pooled, each_bytes))
            yield Work("gradients", "bag gradients", traffic.rows_bytes(*pooled))
        keys, values = ids * shapes.column_shards, traffic.OWN_VALUES[shapes.cluster]
        by_owner = shapes.cluster == "rb"
        key_bytes = traffic.OWNER_KEY_BYTES if by_owner else traffic.ROW_KEY_BYTES
        what = "slots" if shapes.cluster == "dp" else "ids"
        yield Work("sort", what, _sorted_bytes(keys, values, key_bytes))
        if shapes.cluster == "dp":
            yield from self._replicated_work(shapes)

    def _replicated_work(self, shapes: Shapes) -> Iterator[Work]:
        workload = self.workload
        batch_ids = workload.batch_size * shapes.hotness
        # Collectives of one kind carry the work of all shapes together, as arrays.
        moved: dict[tuple, np.ndarray] = {}
        each = zip(shapes.rows, shapes.dim, batch_ids, strict=True)
        for i, (rows, dim, of_batch) in enumerate(each):
            for found in replicated_collectives(
                int(rows),
                int(dim),
                int(of_batch),
                workload.devices,
                workload.wire.gradients,
            ):
                key = found.kind, found.phase, found.carries
                moved.setdefault(key, np.zeros(len(shapes)))[i] += found.fixed_bytes
        for key, buffer_bytes in moved.items():
            yield self._moved(Collective(*key), buffer_bytes)
        if workload.devices > 1:
            told = np.where(summed_whole(shapes.rows, batch_ids), 0, batch_ids)
            told_bytes = _sorted_bytes(told, traffic.EXCHANGED_VALUES)
            yield Work("sort", "told slots", told_bytes)
            # The buffer of row gradients is zeroed, and read once more for squares.
            passes = 1 + workload.row_wise
            summed = np.minimum(shapes.rows, batch_ids)
            summed_bytes = passes * traffic.rows_bytes(summed, shapes.dim)
            yield Work("gradients", "row gradients", summed_bytes)
        yield self._update(shapes, np.arange(len(shapes)))

    def storage_price(self, storage: StorageKind) -> StoragePrice:
        ms = dict.fromkeys(get_args(Unit), 0.0)
        for unit, work in self.storage_work(storage):
            ms[unit] += float(self.work_ms(work))
        return StoragePrice(*ms.values())

    def owner_ms(self, shapes: Shapes) -> np.ndarray:
        ms = np.zeros((len(OWNER_PHASES), len(shapes.shape)))
        for work in self.owner_work(shapes):
            ms[OWNER_PHASES.index(work.phase)] += self.work_ms(work)
        return ms

    def everywhere_ms(self, shapes: Shapes) -> np.ndarray:
        works = self.everywhere_work(shapes)
        return sum((self.work_ms(work) for work in works), np.zeros(len(shapes)))

    def work_ms(self, work: Work) -> Any:
        """Returns the time of memory, links and latency, one after the other."""
        rates = Rates(self.workload.fleet)
        link_ms = rates.links_ms(self.link_bytes(work))
        return rates.memory_ms(work.memory_bytes) + link_ms + work.latency_ms

    def link_bytes(self, work: Work) -> traffic.LinkBytes:
        """Returns the bytes that a device sends."""
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

    def _moved(self, collective: Collective, buffer_bytes: Any) -> Work:
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
            latency_us = {
                "fleet": rates.exchange_us,
                "node": rates.node_exchange_us,
                "rail": rates.rail_exchange_us,
            }[collective.reach]
        return Work(
            collective.phase,
            collective.carries,
            collective=collective.kind,
            reach=collective.reach,
            latency_ms=latency_us / 1e3,
        )


def _sorted_bytes(
    ids: Any, values_per_id: int, key_bytes: int = traffic.ROW_KEY_BYTES
) -> Any:
    """Returns the bytes in memory of sorting ids, and of what is done around it."""
    return traffic.sort_bytes(ids, key_bytes) + traffic.index_bytes(ids, values_per_id)


@dataclasses.dataclass(frozen=True)
class EmbarkModel:
    """The cost that EMBark's released planner searches with, for RB shards only.

    ``W · B · Σ hotness · width / row shards + R · B · Σ width`` over the shards of a
    device, where B is the global batch; between nodes the first term is divided by 8,
    the second multiplied by 1.5 / 8 (HugeCTR, ``benchmarks/embedding_collection``). W
    and R weigh bytes of memory and of links against each other; a weighted byte takes
    as long as one of device memory. Skew, ids, latency and padding are left out.
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

    def owner_ms(self, shapes: Shapes) -> np.ndarray:
        hierarchical = self.workload.fleet.nodes > 1
        lookup_share, link_share = (1 / 8, 1.5 / 8) if hierarchical else (1.0, 1.0)
        weighted_bytes = (
            self.workload.batch_size
            * shapes.width
            * (
                self.memory_weight * lookup_share * shapes.hotness / shapes.row_shards
                + self.link_weight * link_share * shapes.bags
            )
        )
        rate = self.workload.fleet.device.memory_bytes_per_s
        ms = (1e3 * weighted_bytes / rate)[shapes.shape]
        return np.stack([np.zeros_like(ms), np.zeros_like(ms), ms])

    def everywhere_ms(self, shapes: Shapes) -> np.ndarray:
        return np.zeros(len(shapes))
