"""One request as the search sees it: groups of alike tables and their candidates.

A candidate adds to the peaks of its storage (``cost/work.py``), and to the use of the
storage of its hot rows. Peaks are numbered kind by kind, those of all storages
together; then come those of the update and of row stores, which are of all storages,
and last what is exposed of row stores, to which no candidate adds.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from embark_jax.planner.cost.candidates import Load
from embark_jax.planner.cost.memory import STORED_TIERS
from embark_jax.planner.cost.objective import Objective
from embark_jax.planner.cost.work import Peak
from embark_jax.planner.request.checking import checked
from embark_jax.planner.request.workload import TableUse, Workload, table_uses
from embark_jax.planner.search.layouts import worthwhile_candidates
from embark_jax.plans.forced import FREE, ForcedPlacement
from embark_jax.plans.tables import FeatureSpec, TableSpec

PEAK_HOT_USE = len(Peak)
ADDED = PEAK_HOT_USE + 1
"""Number of peaks that a candidate adds to."""
OF_STORAGES = [peak for peak in Peak if peak not in (Peak.UPDATE, Peak.STORE)]
"""Peaks that each storage has for itself; its use comes last."""


Forced = Mapping[str, ForcedPlacement]


class Request(NamedTuple):
    """What is asked of the planner.

    Attributes:
      tables, features, forced: the model, and what is forced of its placements.
      workload: circumstances of the step.
      change: how it differs from what a user asked.
    """

    tables: Sequence[TableSpec]
    features: Sequence[FeatureSpec]
    forced: Forced
    workload: Workload
    change: str = ""

    def on(self, change: str, **fields: int) -> Request:
        """Returns the request on a fleet with other fields."""
        fleet = dataclasses.replace(self.workload.fleet, **fields)
        return self.under(change, fleet=fleet)

    def under(self, change: str, **fields: object) -> Request:
        """Returns the request with other fields of the workload."""
        workload = dataclasses.replace(self.workload, **fields)
        return self._replace(workload=workload, change=change)

    def elsewhere(self, change: str, some: Collection[TableSpec]) -> Request:
        """Returns the request with some tables wherever there is room."""
        tables = [
            dataclasses.replace(table, tier="auto") if table in some else table
            for table in self.tables
        ]
        return self._replace(tables=tables, change=change)

    def on_devices(self) -> list[TableSpec]:
        """Returns the tables that must have all rows on devices."""
        return [
            table for table in self.tables if not (table.cached or table.is_dynamic)
        ]

    def instance(self) -> Instance:
        """Returns the request as the search sees it.

        Raises:
          ValueError: if it is inconsistent.
        """
        grown, forced = checked(self.tables, self.features, self.forced, self.workload)
        return Instance(grown, self.features, forced, self.workload)


class Instance:
    """The search's form of one request.

    Attributes:
      workload, objective: circumstances of the plan, and what prices it.
      memory: the memory of the objective.
      tables: tables of the model.
      group: ``[tables]`` number of the group of alike tables: equal in use, and in what
        is forced.
      counts: ``[groups]`` number of tables.
      uses, forced: ``[groups]`` use of each table, and what is forced.
      owners: ``[groups]`` forced owners, or None.
      candidates: candidates of all groups, group by group; a candidate's ``table`` is
        a group.
      peak_ms: ``[peaks]`` price of each peak.
      peak: ``[ADDED, candidates]`` number of each peak that a candidate adds to.
      mean: ``[ADDED, candidates]`` what it adds there on each device, if it is spread
        evenly.
      largest: ``[ADDED, candidates]`` its largest shard, or 1 for the use of a storage.
      whole: ``[peaks]`` whether each is a whole number: that of partial sums, and the
        use of a storage.
      stored_bytes: ``[STORED_TIERS, candidates]`` bytes in host memory and on disks.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        features: Sequence[FeatureSpec],
        forced: Forced,
        workload: Workload,
    ):
        """
        Args:
          tables, features, forced: as for ``plan``.
          workload: circumstances of the plan.
        """
        forces = [forced.get(table.name, FREE) for table in tables]
        for table, force in zip(tables, forces, strict=True):
            skew = workload.statistics.skew(table)
            if force.hot_rows and skew is not None and not skew.in_order:
                raise ValueError(
                    f"table {table.name!r}: hot_rows is {force.hot_rows}, but by the "
                    "statistics its first rows are not the most frequent ones; number "
                    "its rows by frequency (embark_jax.by_frequency; the vocabularies "
                    "of `embark data prepare` are), or leave hot_rows out"
                )
        numbers: dict[tuple[TableUse, ForcedPlacement], int] = {}
        requests = zip(table_uses(tables, features, workload), forces, strict=True)
        self.group = np.array(
            [numbers.setdefault(each, len(numbers)) for each in requests]
        )
        self.counts = np.bincount(self.group)
        self.uses = [use for use, _ in numbers]
        self.forced = [force for _, force in numbers]
        self.owners = [
            None if force.devices is None else np.array(force.devices, np.int64)
            for force in self.forced
        ]
        self.tables, self.workload = tables, workload
        self.candidates = worthwhile_candidates([*numbers], tables, workload)
        self.objective = Objective(self.candidates.storages, workload)
        self.memory = self.objective.memory
        self._spread()

    def _spread(self) -> None:
        """Spreads candidates evenly over all devices."""
        candidates, objective = self.candidates, self.objective
        storages, devices = len(objective.storages), objective.devices
        loads = objective.of_devices(candidates.loads, at_least=True)
        self.mean, self.largest = mean, largest = np.zeros((2, ADDED, len(candidates)))
        means = candidates.reduced(np.add, loads) * candidates.column_shards / devices
        mean[: Peak.NODE] = means
        largest[: Peak.NODE] = candidates.reduced(np.maximum, loads)
        gpus = self.workload.fleet.gpus_per_node
        # On the fewest nodes, each on another device.
        nodes = np.ceil(candidates.row_shards / gpus)
        largest[Peak.NODE] = candidates.staged * largest[Peak.SUMS]
        of_nodes = largest[Peak.NODE] * nodes * candidates.column_shards
        mean[Peak.NODE] = of_nodes * gpus / devices
        largest[Peak.USE], largest[PEAK_HOT_USE] = 1.0, candidates.hot_rows > 0
        self.peak = peak = np.zeros((ADDED, len(candidates)), np.int64)
        for number, kind in enumerate(OF_STORAGES):
            peak[kind] = number * storages + candidates.storage
        uses = OF_STORAGES.index(Peak.USE) * storages
        peak[PEAK_HOT_USE] = uses + np.maximum(candidates.hot_storage, 0)
        peak[Peak.UPDATE] = uses + storages
        peak[Peak.STORE] = uses + storages + 1
        prices = objective.prices[OF_STORAGES].reshape(-1)
        self.peak_ms = np.concatenate([prices, np.ones(3)])
        self.whole = np.zeros(len(self.peak_ms), bool)
        self.whole[peak[[Peak.SUMS, Peak.NODE, Peak.USE, PEAK_HOT_USE]]] = True
        tiers = np.arange(len(STORED_TIERS))[:, None]
        stored = candidates.reduced(np.add, candidates.loads[Load.STORED_BYTES])
        in_tier = objective.tier[candidates.storage] == tiers
        self.stored_bytes = in_tier * stored * candidates.column_shards

    @functools.cached_property
    def has_stores(self) -> bool:
        """Whether some candidate has rows elsewhere than on devices."""
        return bool((self.candidates.loads[Load.STORE_MS] > 0).any())

    @functools.cached_property
    def shard_bytes(self) -> np.ndarray:
        """``[candidates]`` least bytes of a device that has their largest shard: its
        rows, and what every device holds."""
        candidates = self.candidates
        rows = candidates.reduced(np.maximum, candidates.loads[Load.ROWS])
        row_bytes = self.objective.held_bytes[Peak.ROWS][candidates.storage]
        return row_bytes * rows + candidates.everywhere_bytes[0]

    @functools.cached_property
    def held_bytes(self) -> np.ndarray:
        """``[candidates]`` bytes that they take in the update wherever their shards
        lie: on every device, and of rows in host memory and on disks, which count as
        the bytes of device memory that are as large a share of its limit."""
        candidates = self.candidates
        weights = self.objective.stored_weights[candidates.storage]
        return candidates.everywhere_bytes[1] + weights * self.stored_bytes.sum(axis=0)

    @functools.cached_property
    def mean_ms(self) -> np.ndarray:
        """``[candidates]`` time that each adds if it is spread evenly."""
        added_ms = (self.peak_ms[self.peak] * self.mean).sum(axis=0)
        return self.candidates.everywhere_ms + added_ms

    @functools.cached_property
    def undominated(self) -> np.ndarray:
        """``[candidates]`` whether no other of the same table and storage is as
        good in every peak, time and bytes; of equal candidates the first stays."""
        candidates = self.candidates
        everywhere = [candidates.everywhere_ms, *candidates.everywhere_bytes]
        of_places = [*everywhere, *self.stored_bytes]
        costs = np.concatenate([self.mean, self.largest, of_places])
        pairs = candidates.table * len(self.objective.storages) + candidates.storage
        order = np.argsort(pairs, kind="stable")
        costs, pairs = costs[:, order], pairs[order]
        keep = np.ones(len(pairs), bool)
        for shift in range(1, int(np.unique(pairs, return_counts=True)[1].max())):
            one, other = costs[:, :-shift], costs[:, shift:]
            alike = pairs[:-shift] == pairs[shift:]
            no_more = alike & (one <= other).all(axis=0)
            keep[shift:] &= ~no_more
            keep[:-shift] &= no_more | ~(alike & (other <= one).all(axis=0))
        undominated = np.zeros(len(pairs), bool)
        undominated[order] = keep
        return undominated
