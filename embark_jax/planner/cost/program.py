"""The cost model of the program: the bytes that a compiled train step really moves."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from embark_kernels.sizes import COLUMNS_AT_ONCE

from embark_jax.planner.cost.dense import dense_ms
from embark_jax.planner.cost.exchanges import exchange_work
from embark_jax.planner.cost.rates import Rates
from embark_jax.planner.cost.work import EXCHANGED, OWNER_PHASES, STORE, Peak, Work
from embark_jax.planner.request.workload import Workload
from embark_jax.plans import traffic
from embark_jax.plans.clusters import CLUSTERS
from embark_jax.plans.placement import StorageKind
from embark_jax.plans.wire import VALUE_BYTES

if TYPE_CHECKING:
    from embark_jax.planner.cost.candidates import Candidates

AHEAD = "id exchange"
"""The phase whose collectives run beside the dense layers of the step before, if that
step makes the routes. Sorts do not: they are kernels, as those of the layers are."""
ID_VALUES = 2
"""32-bit values in which an id travels in RB: its slot and its bag."""
TOUCHED_ROWS = Work("id exchange", "touched rows", collective="all_reduce")
ROW_SUM = Work("gradient exchange", "row gradients", collective="all_reduce")
"""What tells devices of replicated rows which are touched, and sums their gradients."""
KERNELS_A_STORAGE = {"sort": 18, "lookup": 4, "update": 7}
"""Kernels for a storage, as counted in compiled steps
(``experiments/step_bytes/timeline``): most move little."""
DISK_BLOCK_BYTES = 4096
"""Least bytes that a disk reads or writes."""


@dataclasses.dataclass(frozen=True)
class ProgramModel:
    """Prices what the compiled train step really moves, padding included.

    Attributes:
      workload: circumstances of the plan.
    """

    workload: Workload

    @functools.cached_property
    def rates(self) -> Rates:
        return Rates(self.workload.fleet)

    def storage_work(self, storage: StorageKind) -> Iterator[tuple[Peak, Work]]:
        """Yields the work of every device in a storage's exchanges, for a unit of each
        peak in ``EXCHANGED``."""
        workload = self.workload
        properties = storage.of_cluster
        for phase, kernels in KERNELS_A_STORAGE.items():
            yield Peak.USE, Work(phase, "small kernels", kernels=kernels)
        if properties.replicated:
            # The sum travels in the all-reduce of the dense gradients, if there is one.
            dense = workload.dense
            if not dense.parameters or dense.parallelism != "replicated":
                latency_ms, _ = self.rates.long_sum
                yield Peak.USE, dataclasses.replace(ROW_SUM, latency_ms=latency_ms)
            return
        yield from exchange_work(storage, workload)
        # One id of capacity for each device: what arrives is grouped by row.
        slots = workload.devices
        ids = properties.ids[workload.kernels]
        slots_bytes = traffic.ids_bytes(
            slots, ids.received_key_bytes, ids.received_values
        )
        yield Peak.IDS, Work("sort", "received slots", slots_bytes)
        rows_bytes = traffic.rows_bytes(slots, storage.width)
        if not properties.pools_at_owner:
            yield Peak.IDS, Work("lookup", "rows", rows_bytes)
            if workload.devices == 1:
                # Nothing travels, but sums of gradients are written and read again.
                yield Peak.IDS, Work("gradients", "row gradients", 2 * rows_bytes)
        elif self.in_xla:  # adds to sums that it has zeroed; a kernel just writes them
            sums = workload.device_batch * workload.devices
            sums_bytes = 2 * traffic.rows_bytes(sums, storage.width)
            yield Peak.SUMS, Work("lookup", "partial sums", sums_bytes)
        if storage.split and workload.row_wise:
            squares_bytes = traffic.WORD_BYTES * slots * traffic.SQUARE_VALUES
            yield Peak.IDS, Work("gradients", "squares", squares_bytes)

    def owner_work(self, candidates: Candidates) -> Iterator[Work]:
        """Yields the work of the owners of row shards, in each column shard; that of
        replicated tables, which have none, says nothing."""
        row_bytes = traffic.rows_bytes(1, candidates.width)[candidates.candidate]
        read_bytes = traffic.rows_bytes(1, candidates.width, candidates.value_bytes)
        pooled = candidates.pools_at_owner[candidates.candidate] * candidates.batch_ids
        yield Work("lookup", "rows", read_bytes[candidates.candidate] * pooled)
        yield Work("gradients", "bag gradients", row_bytes * pooled)
        if self.in_xla:
            ids = np.where(
                candidates.unique_ids[candidates.candidate],
                candidates.likely_ids * self.workload.devices,
                candidates.batch_ids,
            )
            width = candidates.width[candidates.candidate]
            yield self._sums(ids, candidates.room_for_rows, width)
        elif self.workload.row_wise:
            split = (candidates.column_shards > 1)[candidates.candidate]
            # A kernel sums row gradients of whole rows where it updates them. These
            # have an array of their own, which is zeroed, written, squared and read.
            rows = candidates.batch_unique + 3 * candidates.room_for_rows
            yield Work("gradients", "row gradients", row_bytes * split * rows)
        yield self._update(candidates, candidates.candidate, candidates.batch_unique)
        if candidates.cached.any():
            yield from self._store_work(candidates)

    def _store_work(self, candidates: Candidates) -> Iterator[Work]:
        """Yields the work of rows that come into slots, and of as many that leave:
        these were updated since they came. Two programs read and write both."""
        moved = candidates.missed_rows * candidates.cached[candidates.candidate]
        row_bytes = traffic.update_rows_bytes(
            1, candidates.width, *self.workload.state_values, candidates.value_bytes
        )[candidates.candidate]
        blocks = np.maximum(row_bytes, 2 * DISK_BLOCK_BYTES)
        yield Work("update", "rows of slots", 2 * moved * row_bytes)
        yield Work(
            STORE,
            "rows of slots",
            host_bytes=moved * row_bytes,
            disk_bytes=moved * blocks * candidates.on_disk[candidates.candidate],
        )

    @property
    def in_xla(self) -> bool:
        """Whether plain XLA sums row gradients, in an array, before it updates rows."""
        return self.workload.kernels == "xla"

    def _sums(self, ids: Any, sums: Any, width: Any, sent: bool = False) -> Work:
        """Returns the work of summing row gradients of ids in plain XLA, and of reading
        the sums: in the update, and before it for mean squares; or where they are in a
        buffer that is sent, whose exchange counts that they are written, without
        that."""
        reads = -1 if sent else 1 + self.workload.row_wise
        read_bytes = reads * traffic.rows_bytes(sums, width)
        sums_bytes = traffic.sums_bytes(ids, sums, width)
        return Work("gradients", "row gradients", sums_bytes + read_bytes)

    def _update(
        self, candidates: Candidates, candidate: np.ndarray, rows: np.ndarray
    ) -> Work:
        """Returns the work of updating so many rows of each of some candidates."""
        row_bytes = traffic.update_rows_bytes(
            1, candidates.width, *self.workload.state_values, candidates.value_bytes
        )
        return Work("update", "rows", row_bytes[candidate] * rows)

    def everywhere_work(self, candidates: Candidates) -> Iterator[Work]:
        """Yields the work of every device, wherever the shards are."""
        workload = self.workload
        ids = workload.device_batch * candidates.hotness
        bags = workload.device_batch * candidates.bags
        dim, replicated = candidates.dim, candidates.replicated
        bags_bytes = traffic.rows_bytes(bags, dim, candidates.embedding_bytes)
        yield Work("lookup", "pooled rows", bags_bytes)
        pooled_ids = ids * candidates.filled * ~candidates.pools_at_owner
        # Rows that travelled have arrived as float32.
        value_bytes = np.where(replicated, candidates.value_bytes, traffic.WORD_BYTES)
        yield Work("lookup", "rows", traffic.rows_bytes(pooled_ids, dim, value_bytes))
        read_bytes = traffic.rows_bytes(pooled_ids, dim, candidates.embedding_bytes)
        yield Work("gradients", "bag gradients", read_bytes)
        if self.in_xla:
            kernels = np.ceil(ids / bags / COLUMNS_AT_ONCE)
            sums_bytes = 2 * (kernels - 1) * traffic.rows_bytes(bags, dim)
            own_bytes = sums_bytes * ~candidates.pools_at_owner
            yield Work("lookup", "partial sums", own_bytes)
            unique = candidates.expected_unique(workload.device_batch)
            sums = self._sums(pooled_ids, unique, dim, sent=True)
            yield sums.only(candidates.unique_ids)
        of_clusters = np.array(
            [each.ids[workload.kernels] for each in CLUSTERS.values()]
        )
        key_bytes, values, *received = of_clusters[candidates.cluster].T
        shards_ids = ids * candidates.column_shards
        keys = Work("sort", "ids", traffic.ids_bytes(shards_ids, key_bytes, values))
        yield keys.only(~replicated)
        yield dataclasses.replace(keys, what="slots").only(replicated)
        for work in self._replicated_work(candidates, traffic.ids_bytes(1, *received)):
            yield work.only(replicated)

    def _replicated_work(
        self, candidates: Candidates, id_bytes: np.ndarray
    ) -> Iterator[Work]:
        """Yields the work of every device for tables in DP.

        Args:
          candidates: candidates, of any cluster.
          id_bytes: ``[candidates]`` what devices move for an id that they are told.
        """
        workload, dim = self.workload, candidates.dim
        batch_ids = np.rint(workload.batch_size * candidates.hotness)
        own_ids = workload.device_batch * candidates.hotness * candidates.filled
        summed = candidates.room_for_rows[candidates.first[:-1]]
        if workload.devices > 1:
            whole = traffic.summed_whole(candidates.rows, batch_ids)
            # The step's all-reduce of capacities also says which rows are touched: by a
            # flag for each row, or by all ids, each in an element of its own.
            flags = np.where(whole, candidates.rows, batch_ids)
            yield TOUCHED_ROWS.in_buffer(traffic.WORD_BYTES * flags)
            yield ROW_SUM.in_buffer(VALUE_BYTES[workload.wire.sums] * dim * summed)
            gathered = np.where(whole, 0, batch_ids)
            yield Work("sort", "gathered slots", id_bytes * gathered)
            # The buffer of row gradients is zeroed, and read once more for squares.
            if self.in_xla:
                yield self._sums(own_ids, summed, dim, sent=True)
            passes = (not self.in_xla) + workload.row_wise
            summed_bytes = passes * traffic.rows_bytes(summed, dim)
            yield Work("gradients", "row gradients", summed_bytes)
        elif self.in_xla:
            yield self._sums(own_ids, summed, dim)
        touched = candidates.expected_unique(workload.batch_size)
        yield self._update(candidates, np.arange(len(candidates)), touched)

    def storage_price(self, storage: StorageKind) -> dict[Peak, float]:
        """Returns ms for a unit of each peak that sizes a storage's exchanges."""
        ms = dict.fromkeys(EXCHANGED, 0.0)
        for peak, work in self.storage_work(storage):
            ms[peak] += float(self.step_ms(work))
        return ms

    def owner_ms(self, candidates: Candidates) -> np.ndarray:
        """Returns ``[OWNER_PHASES, row shards]`` time of the owner of one column shard
        of each row shard."""
        ms = np.zeros((len(OWNER_PHASES), len(candidates.candidate)))
        for work in self.owner_work(candidates):
            ms[OWNER_PHASES.index(work.phase)] += self.step_ms(work)
        return ms

    def everywhere_ms(self, candidates: Candidates) -> np.ndarray:
        """Returns ``[candidates]`` time of every device alike."""
        works = self.everywhere_work(candidates)
        return sum((self.step_ms(work) for work in works), np.zeros(len(candidates)))

    def step_ms(self, work: Work) -> Any:
        """Returns the time that the step takes for work: of memory, links and latency,
        one after the other, without what is hidden of the latter two."""
        exposed_ms = self.travel_ms(work) * (1 - self.hidden_share(work))
        return self.memory_ms(work) + self.store_ms(work) + exposed_ms

    def hidden_share(self, work: Work) -> float:
        """Returns the share of the time on links that passes beside dense layers."""
        return self._ahead_share if work.phase == AHEAD else 0.0

    @functools.cached_property
    def _ahead_share(self) -> float:
        """Where the routes of the next batch hide, all of the time if the products of
        the dense layers last longer than their ids travel, each once; else as much of
        it as they last."""
        workload, fleet = self.workload, self.workload.fleet
        if not (workload.overlap and workload.dense.parameters):
            return 0.0
        ids = workload.capacity_slack * workload.device_batch * workload.sample_ids
        ids_bytes = ids * ID_VALUES * traffic.WORD_BYTES
        sent = traffic.all_to_all_bytes(ids_bytes, fleet.nodes, fleet.gpus_per_node)
        ids_ms = float(self.rates.links_ms(sent))
        return min(1.0, self.dense_ms / ids_ms) if ids_ms else 1.0

    @functools.cached_property
    def dense_ms(self) -> float:
        """Time of the dense layers, beside which a look-ahead hides."""
        workload = self.workload
        return dense_ms(workload.dense, workload.device_batch, self.rates)

    def memory_ms(self, work: Work) -> Any:
        share, efficiency = None, self.workload.fleet.efficiency
        if work.phase == "sort":
            share = efficiency.xla_ids if self.in_xla else efficiency.ids
        return self.rates.memory_ms(work.memory_bytes, work.kernels, share)

    def store_ms(self, work: Work) -> Any:
        return self.rates.store_ms(work.host_bytes, work.disk_bytes)

    def travel_ms(self, work: Work) -> Any:
        """Returns the time of links and latency."""
        rates = self.rates
        if work.collective == "all_reduce":
            return work.latency_ms + rates.long_sum[1] * work.buffer_bytes
        return rates.links_ms(self.link_bytes(work)) + work.latency_ms

    def link_bytes(self, work: Work) -> traffic.LinkBytes:
        """Returns the bytes that a device sends."""
        if work.collective is None:
            return traffic.LinkBytes(0.0, 0.0)
        fleet = self.rates.of(work.reach).fleet
        size = work.buffer_bytes, fleet.nodes, fleet.gpus_per_node
        if work.collective == "all_reduce":
            return traffic.all_reduce_bytes(*size)
        return traffic.all_to_all_bytes(*size)
