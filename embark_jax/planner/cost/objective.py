"""The objective: the time and memory of a plan, from the loads of its devices.

Phases of a step run one after the other, with an exchange as a barrier after each: a
phase ends when its fullest device is done. So a plan costs ::

    sum over tables of everywhere_ms
    + sum over peaks and storages of price × peak
    + the longest update of any device
    + what look-ahead leaves of the row stores' longest time of any device

A *peak* is the largest load of any device in a storage: of partial sums, ids, and
owners' time in lookup and gradients; or 1 if any table lies there. Time in the update
is added up over storages first: all are updated between the last exchange of a step and
the first of the next. In whatever order the program runs the storages, a step takes no
longer than that; the dense layers are not in it. The objective counts one overlap:
where a step also makes the routes of the next, the links carry ids while the dense
layers run, and have no price for it, as far as these layers last. They are taken to be
their products, and ids to travel once (``ProgramModel.hidden_share``): a step with much
longer travel, as of many column shards, takes longer than that.

Row stores bring the rows of cached tables that a batch asks for and slots lack, and
take others, over the link between a device and its node. With look-ahead they do so
while the step before runs, dense layers included; what lasts longer is *exposed*.

Search, bound, report and simulator ask this module; a few lines in
``tests/planner/scalar_objective.py`` compute the same cost one shard at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embark_jax.planner.cost.candidates import TIMED, Load
from embark_jax.planner.cost.loads import Loads
from embark_jax.planner.cost.memory import STORED_TIERS, Memory
from embark_jax.planner.cost.program import ProgramModel
from embark_jax.planner.cost.work import Peak
from embark_jax.planner.request.workload import Workload
from embark_jax.plans.capacities import capacity_of
from embark_jax.plans.storage import StorageKind


class Objective:
    """Prices plans.

    Attributes:
      storages: all storages that a plan may have.
      prices: ``[peaks, storages]`` ms for a unit of each peak.
      held_bytes: ``[peaks, storages]`` bytes that a unit takes all the time.
      update_bytes: ``[peaks, storages]`` bytes that it takes in the update only.
      tier: ``[storages]`` number in ``STORED_TIERS`` of the place with room for all
        rows; -1 for devices.
      stored_weights: ``[storages]`` bytes of device memory that are as large a share of
        its limit as a byte of rows in a tier is of that tier's.
      dense_ms: time of the dense layers, beside which look-ahead lets row stores work.
    """

    def __init__(self, storages: Sequence[StorageKind], workload: Workload):
        self.storages = tuple(storages)
        self.workload = workload
        self.memory = memory = Memory(workload)
        self.slack = workload.capacity_slack
        self.devices = workload.devices
        model = ProgramModel(workload)
        shape = 3, len(Peak), len(self.storages)
        self.prices, self.held_bytes, self.update_bytes = np.zeros(shape)
        self.prices[[Peak.LOOKUP, Peak.GRADIENTS]] = 1.0
        for s, storage in enumerate(self.storages):
            held, update = memory.of_storage(storage)
            for array, values in (
                (self.prices, model.storage_price(storage)),
                (self.held_bytes, held),
                (self.update_bytes, update),
            ):
                array[list(values), s] = list(values.values())
        numbers = {tier: number for number, tier in enumerate(STORED_TIERS)}
        tiers = [numbers.get(storage.tier, -1) for storage in storages]
        self.tier = np.array(tiers, np.int64)
        limits = memory.stored_limit_bytes * workload.fleet.nodes
        self.stored_weights = np.where(
            self.tier >= 0, memory.limit_bytes / limits[self.tier], 0.0
        )
        self.dense_ms = model.dense_ms
        dense, fleet = workload.dense, workload.fleet
        self.fixed_bytes = dense.held_bytes(fleet) + np.array(
            [memory.activation_bytes, dense.gradient_bytes(fleet)]
        )

    def capacities(self, certain: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """Returns the capacity for these ids or rows, elementwise."""
        # Tables that were removed leave rounding errors below zero.
        return capacity_of(certain, np.maximum(expected, 0.0), self.slack)

    def of_devices(self, own: np.ndarray, at_least: bool = False) -> np.ndarray:
        """Returns ``[Peak.NODE, ...]`` what may be a peak, from ``[KINDS, ...]`` loads;
        of ``TIMED`` kinds only those up to the update. ``at_least`` leaves out what
        chance adds to a capacity, so that the parts of a sum add up."""

        def capacities(certain: np.ndarray, expected: np.ndarray) -> np.ndarray:
            if at_least:
                return certain + self.slack * expected
            return self.capacities(certain, expected)

        is_timed = len(own) == TIMED
        found = np.empty((Peak.ROWS if is_timed else Peak.NODE, *own.shape[1:]))
        found[Peak.SUMS] = own[Load.SUMS]
        found[Peak.IDS] = capacities(own[Load.CERTAIN], own[Load.EXPECTED])
        found[Peak.LOOKUP] = own[Load.LOOKUP_MS]
        found[Peak.GRADIENTS] = own[Load.GRADIENTS_MS]
        found[Peak.UPDATE] = own[Load.UPDATE_MS]
        if not is_timed:
            of_rows = own[Load.CERTAIN_UPDATED], own[Load.EXPECTED_UPDATED]
            found[Peak.ROWS] = own[Load.ROWS]
            found[Peak.UPDATED] = capacities(*of_rows)
            found[Peak.STORE] = own[Load.STORE_MS]
        return found

    def peaks(self, loads: Loads) -> np.ndarray:
        """Returns ``[peaks, storages]`` loads of the fullest devices and nodes."""
        own = self.of_devices(loads.own).max(axis=2)
        return np.stack([*own, loads.node_sums.max(axis=1), loads.tables > 0])

    def step_ms(self, loads: Loads) -> float:
        """Returns the longest time that a step takes."""
        return self._on_devices_ms(loads) + self.exposed_store_ms(loads)

    def _on_devices_ms(self, loads: Loads) -> float:
        """Returns the time of a step whose rows are all in slots."""
        return float(
            loads.everywhere_ms
            + (self.prices * self.peaks(loads)).sum()
            + loads.update_ms.max()
        )

    def exposed_store_ms(self, loads: Loads) -> float:
        """Returns the time in which a step waits for row stores."""
        store_ms = float(loads.store_ms.max())
        if not self.workload.overlap:
            return store_ms
        return max(0.0, store_ms - self._on_devices_ms(loads) - self.dense_ms)

    def exposed_store_share(self, loads: Loads) -> float:
        """Returns the share of their time in which a step waits for row stores."""
        store_ms = float(loads.store_ms.max())
        return self.exposed_store_ms(loads) / store_ms if store_ms > 0 else 0.0

    def bytes(self, loads: Loads) -> float:
        """Returns the bytes on every device, at the fuller of two times
        (``memory.py``)."""
        peaks = self.peaks(loads)
        held = (self.held_bytes * peaks).sum()
        update = (self.update_bytes * peaks).sum()
        times = self.fixed_bytes + loads.everywhere_bytes + np.array([0.0, update])
        return float(held + times.max())

    def stored_bytes(self, loads: Loads) -> np.ndarray:
        """Returns ``[STORED_TIERS]`` bytes of rows in host memory and on disks, of the
        fullest node."""
        stored = np.zeros((len(STORED_TIERS), loads.node_sums.shape[1]))
        of_nodes = loads.own[Load.STORED_BYTES].reshape(*loads.node_sums.shape, -1)
        cached = self.tier >= 0
        np.add.at(stored, self.tier[cached], of_nodes[cached].sum(axis=2))
        return stored.max(axis=1)
