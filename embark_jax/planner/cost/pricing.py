"""The cost of a plan, in one pass: its work items, and the sums over them.

``price`` takes any placements, whatever made them. What a device has to do is a list of
*work items*: one for each phase, storage and kind of work, in bytes and in
milliseconds, by table and device. Phases, shares of tables and what a simulator
schedules are sums over these items; loads and objective, which the search changes table
by table, are made of the same work.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from embark_jax.planner.cost.candidates import Load, candidates_of, ranges_of, uses_of
from embark_jax.planner.cost.loads import Loads
from embark_jax.planner.cost.memory import STORED_TIERS
from embark_jax.planner.cost.objective import Objective
from embark_jax.planner.cost.program import ProgramModel
from embark_jax.planner.cost.work import EXCHANGED, PHASES, STORE, Peak, Work
from embark_jax.planner.request.workload import Workload, events_of_device
from embark_jax.plans.capacities import events_of, of_storage, rows_of
from embark_jax.plans.placement import Placement, StorageKind
from embark_jax.plans.prediction import Breakdown, Prediction
from embark_jax.plans.tables import FeatureSpec

AMOUNTS = (
    "memory_bytes",
    "buffer_bytes",
    "latency_ms",
    "host_bytes",
    "disk_bytes",
    "kernels",
)
"""The fields of ``Work`` that say how much it is."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class WorkItem(Work):
    """The work of all devices in a part of a phase, for the tables of one storage.

    Its amounts are ``[ranges, devices]``, as the times are. The buffer of a collective
    is as large on every device as on the fullest one.

    Attributes:
      storage: the storage.
      ranges: ``[ranges]`` numbers of the row ranges.
      memory_ms, travel_ms, store_ms: time in device memory, on links, latency included,
        and of row stores.
      hidden_ms: part of that time that passes beside the dense layers, or for row
        stores beside the step before.
    """

    storage: StorageKind
    ranges: np.ndarray
    memory_ms: np.ndarray
    travel_ms: np.ndarray
    store_ms: np.ndarray
    hidden_ms: np.ndarray

    @property
    def step_ms(self) -> np.ndarray:
        """``[ranges, devices]`` time that the step takes for it."""
        return self.memory_ms + self.travel_ms + self.store_ms - self.hidden_ms

    @property
    def buffer(self) -> float:
        """Bytes of the collective's buffer on one device."""
        return float(np.sum(self.buffer_bytes, axis=0).max())


class PricedPlan:
    """Placements with what they cost.

    Attributes:
      features, workload, sizes: as in ``price``.
      ranges: the row ranges of the placements.
      candidates: candidate i is that of range i.
      owners: the owners of each range's shards.
      loads: the loads of all devices.
      objective: what prices these.
    """

    def __init__(
        self,
        placements: Sequence[Placement],
        features: Sequence[FeatureSpec],
        workload: Workload,
        sizes: Mapping[str, int] | None,
    ):
        self.features, self.workload, self.sizes = features, workload, sizes
        self.ranges = ranges_of(placements, workload)
        self.uses = uses_of(self.ranges, features, workload)
        self.candidates = candidates_of(self.ranges, self.uses, workload, sizes)
        self.owners = [np.array(rows.devices, np.int64) for rows in self.ranges]
        self.loads = Loads(self.candidates, workload)
        for i, owners in enumerate(self.owners):
            self.loads.add(i, owners)
        self.objective = Objective(self.candidates.storages, workload)
        self._model = ProgramModel(workload)

    @functools.cached_property
    def peaks(self) -> np.ndarray:
        """``[peaks, storages]`` loads of the fullest devices."""
        return self.objective.peaks(self.loads)

    @property
    def step_ms(self) -> float:
        """The longest time that a step takes."""
        return self.objective.step_ms(self.loads)

    def prediction(self, lower_bound_ms: float = 0.0) -> Prediction:
        """Returns what a step takes, in time and memory, and its parts.

        Args:
          lower_bound_ms: a bound of all plans' time; zero if it is unknown.
        """
        objective, loads = self.objective, self.loads
        stored_bytes = objective.stored_bytes(loads).tolist()
        of_tiers = zip(STORED_TIERS, stored_bytes, strict=True)
        breakdown = self.breakdown()
        device_ms = np.sum([*breakdown.phase_ms.values()], axis=0)
        return Prediction(
            self.step_ms,
            lower_bound_ms,
            device_ms=tuple(device_ms.tolist()),
            device_bytes=(objective.bytes(loads),) * self.workload.devices,
            stored_bytes={tier: size for tier, size in of_tiers if size},
            breakdown=breakdown,
            placeholders=self.workload.fleet.placeholders,
            kernels=self.workload.kernels,
            optimizer=self.workload.optimizer,
            overlap=self.workload.overlap,
        )

    def capacities(self) -> dict[str, int]:
        """Returns the ids that one device may send to one other in a step, for each
        sharded storage; the rows that a device may update, for each that is not cached;
        and for each sequence that is not full, the events of a device."""
        workload, of_storages = self.workload, {}
        for s, storage in enumerate(self.objective.storages):
            rows = self.peaks[Peak.UPDATED, s]
            if storage.of_cluster.replicated:
                rows = self.objective.capacities(*self._updated_rows[:, s])
            most = {storage.name: self.peaks[Peak.IDS, s], rows_of(storage.name): rows}
            for name in of_storage(storage):
                of_storages[name] = max(1, int(most[name]))
        events = {f: events_of_device(f, workload) for f in self.features if f.sequence}
        of_sequences = {
            events_of(feature.name): room
            for feature, room in events.items()
            if room < workload.device_batch * feature.hotness
        }
        return of_storages | of_sequences

    def work_items(self) -> tuple[WorkItem, ...]:
        """Returns the work of a step, in no particular order."""
        model, candidates = self._model, self.candidates
        everywhere = [*model.everywhere_work(candidates)]
        of_owners = [*model.owner_work(candidates)]
        storages = range(len(candidates.storages))
        return tuple(
            item
            for s in storages
            for item in self._storage_items(s, everywhere, of_owners)
        )

    def _storage_items(
        self, s: int, everywhere: Sequence[Work], of_owners: Sequence[Work]
    ) -> Iterator[WorkItem]:
        """Yields the work items of one storage, of work of all row ranges."""
        storage, model = self.candidates.storages[s], self._model
        ranges = self._ranges[s]
        devices = np.ones(self.workload.devices)
        found: dict[tuple, Work] = {}

        def add(work: Work, spread: Callable[[Any], np.ndarray]) -> None:
            """Adds work, whose amounts a function spreads over ranges and devices."""
            amounts = {name: spread(getattr(work, name)) for name in AMOUNTS}
            key = work.phase, work.what, work.collective, work.reach
            if key in found:
                for name in AMOUNTS:
                    amounts[name] = amounts[name] + getattr(found[key], name)
            found[key] = dataclasses.replace(work, **amounts)

        def on_all(amount: Any) -> np.ndarray:
            of_ranges = np.broadcast_to(amount, len(self.ranges))
            return np.multiply.outer(of_ranges[ranges], devices)

        times = self._times(s)
        for peak, work in model.storage_work(storage):
            of_peak = np.multiply.outer(times[peak], devices)
            add(work, functools.partial(np.multiply, of_peak))
        for work in everywhere:
            add(work, on_all)
        if not storage.of_cluster.replicated:
            for work in of_owners:
                add(work, functools.partial(self._on_owners, ranges))
        for work in found.values():
            if any(np.any(getattr(work, name)) for name in AMOUNTS):
                yield self._item(storage, ranges, work)

    def _item(self, storage: StorageKind, ranges: np.ndarray, work: Work) -> WorkItem:
        model = self._model
        travel_ms, store_ms = model.travel_ms(work), model.store_ms(work)
        hidden_ms = travel_ms * model.hidden_share(work)
        hidden_ms = hidden_ms + store_ms * (1 - self._exposed_store_share)
        return WorkItem(
            **vars(work),
            storage=storage,
            ranges=ranges,
            memory_ms=model.memory_ms(work),
            travel_ms=travel_ms,
            store_ms=store_ms,
            hidden_ms=hidden_ms,
        )

    @functools.cached_property
    def _exposed_store_share(self) -> float:
        return self.objective.exposed_store_share(self.loads)

    @functools.cached_property
    def _ranges(self) -> list[np.ndarray]:
        """``[storages]`` numbers of the row ranges in each."""
        storage = self.candidates.storage
        return [np.flatnonzero(storage == s) for s in range(storage.max() + 1)]

    @functools.cached_property
    def _updated_rows(self) -> np.ndarray:
        """``[2, storages]`` certain and expected rows that a batch updates."""
        candidates = self.candidates
        storage = candidates.storage[candidates.candidate]
        return np.stack(
            [np.bincount(storage, rows) for rows in candidates.updated_rows]
        )

    def _times(self, s: int) -> dict[Peak, np.ndarray]:
        """Returns ``[ranges]`` how much of each unit of a storage's work each row range
        causes: its part of the fullest device's load."""
        peaks, storage = self.peaks[:, s], self.candidates.storages[s]
        ranges = self._ranges[s]
        capacity = peaks[Peak.IDS]
        if self.sizes is not None:
            capacity = self.sizes.get(storage.name, 0)
        equal = np.full(len(ranges), 1 / len(ranges))
        if storage.of_cluster.replicated:
            return dict.fromkeys(EXCHANGED, equal)
        loads = self.loads
        own = np.stack([loads.of_devices(i, self.owners[i]) for i in ranges], axis=1)
        ids = own[Load.CERTAIN] + self.workload.capacity_slack * own[Load.EXPECTED]
        node_sums = np.zeros((len(ranges), 1))
        if storage.of_exchange.staged:
            of_nodes = [loads.of_nodes(i, self.owners[i]) for i in ranges]
            node_sums = np.stack(of_nodes)
        return {
            Peak.USE: equal,
            Peak.SUMS: peaks[Peak.SUMS] * _parts(own[Load.SUMS]),
            Peak.NODE: peaks[Peak.NODE] * _parts(node_sums),
            Peak.IDS: capacity * _parts(ids),
        }

    def _on_owners(self, ranges: np.ndarray, amount: Any) -> np.ndarray:
        """Returns ``[ranges, devices]`` an amount of each row shard, in a column shard,
        on the devices that own shards of these ranges."""
        candidates, devices = self.candidates, self.workload.devices
        of_row_shards = np.broadcast_to(amount, len(candidates.candidate))
        on_devices = np.zeros((len(ranges), devices))
        for number, i in enumerate(ranges):
            owners = self.owners[i]
            row_shard = np.arange(len(owners)) // candidates.column_shards[i]
            of_shards = of_row_shards[candidates.first[i] + row_shard]
            on_devices[number] = np.bincount(owners, of_shards, devices)
        return on_devices

    def breakdown(self) -> Breakdown:
        """Returns the parts of a step's time, and the bytes that travel in it."""
        items, workload = self.work_items(), self.workload
        names = [rows.table.name for rows in self.ranges]
        phases = dict.fromkeys((*PHASES, *(item.phase for item in items)))
        phase_ms = {phase: np.zeros(workload.devices) for phase in phases}
        barriers: dict[tuple[str, StorageKind | None], list[WorkItem]] = {}
        for item in items:
            phase_ms[item.phase] += item.step_ms.sum(axis=0)
            barriers.setdefault(_barrier(item), []).append(item)
        critical_ms = dict.fromkeys(phases, 0.0)
        range_ms = np.zeros(len(names))
        for (phase, _), together in barriers.items():
            # What ends together lasts until the fullest device is done.
            device_ms = np.sum([item.step_ms.sum(axis=0) for item in together], axis=0)
            fullest = int(np.argmax(device_ms))
            critical_ms[phase] += float(device_ms[fullest])
            for item in together:
                range_ms[item.ranges] += item.step_ms[:, fullest]
        table_ms = dict.fromkeys(names, 0.0)
        for name, ms in zip(names, range_ms.tolist(), strict=True):
            table_ms[name] += ms
        hottest, device_ids = self._ids()
        return Breakdown(
            critical_ms={phase: ms for phase, ms in critical_ms.items() if ms},
            phase_ms={
                phase: tuple(map(float, ms))
                for phase, ms in phase_ms.items()
                if ms.any()
            },
            table_ms=table_ms,
            hottest_row_shard=hottest,
            device_ids=tuple(map(float, device_ids)),
            padded_bytes=sum(
                item.buffer
                for item in items
                if item.collective == "all_to_all" and item.reach != "rail"
            )
            / workload.devices,
            reduced_bytes=sum(
                self._sent_bytes(item)
                for item in items
                if item.collective == "all_reduce"
            ),
            hidden_ms=sum(float(item.hidden_ms.sum(axis=0).max()) for item in items),
            hit_rates={
                rows.table.name: use.hit_rate(workload.batch_size)
                for rows, use in zip(self.ranges, self.uses, strict=True)
                if rows.table.cached and not rows.replicated
            },
        )

    def _sent_bytes(self, item: WorkItem) -> float:
        sent = self._model.link_bytes(item)
        return float((sent.node_link + sent.network).sum(axis=0).max())

    def _ids(self) -> tuple[dict[str, float], np.ndarray]:
        """Returns the ids of each table's hottest row shard, as a multiple of the mean,
        and ``[devices]`` ids a sample that each device is expected to receive."""
        candidates = self.candidates
        all_ranges = np.arange(len(self.ranges))
        sharded = all_ranges[~candidates.replicated]
        device_ids = self._on_owners(sharded, candidates.likely_ids).sum(axis=0)
        of_ranges = np.split(candidates.likely_ids, candidates.first[1:-1])
        hottest = {
            # A table with hot rows has two ranges; the cold rows come last.
            rows.table.name: float(ids.max() / ids.mean()) if ids.any() else 1.0
            for rows, ids in zip(self.ranges, of_ranges, strict=True)
        }
        return hottest, device_ids / self.workload.device_batch


def price(
    placements: Sequence[Placement],
    features: Sequence[FeatureSpec],
    workload: Workload,
    sizes: Mapping[str, int] | None = None,
) -> PricedPlan:
    """Prices placements, without a search.

    Args:
      placements: placements of all tables.
      features: features of the model.
      workload: circumstances of the plan: fleet, batch, skew and optimizer.
      sizes: capacities of a plan, for work items of buffers of that size; None takes
        those of the prediction.

    Raises:
      ValueError: if a placement is impossible on the fleet.
    """
    problems = [
        problem
        for placement in placements
        for problem in placement.problems(workload.devices)
    ]
    if problems:
        raise ValueError("; ".join(problems))
    return PricedPlan(placements, features, workload, sizes)


def _barrier(item: WorkItem) -> tuple[str, StorageKind | None]:
    """Returns what ends together: a phase of a storage, or in the update and of row
    stores all storages, as no exchange lies between these."""
    together = item.phase in ("update", STORE)
    return item.phase, None if together else item.storage


def _parts(loads: np.ndarray) -> np.ndarray:
    """Returns ``[ranges]`` the part of each in the fullest place's load, of ``[ranges,
    places]`` loads; equal ones if there is none."""
    total = loads.sum(axis=0)
    fullest = int(np.argmax(total))
    if not total[fullest]:
        return np.full(len(loads), 1 / len(loads))
    return loads[:, fullest] / total[fullest]
