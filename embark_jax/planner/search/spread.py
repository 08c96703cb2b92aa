"""The cost of candidates that are spread evenly, and which of them are dominated.

A candidate adds to the peaks of its storage (``cost/work.py``), and to the use of the
storage of its hot rows. The relaxation numbers the peaks of storages kind by kind,
those of all storages together; then come those of the update and of row stores, which
are of all storages, and last what is exposed of row stores, to which no candidate adds.
"""

from __future__ import annotations

import functools

import numpy as np

from embark_jax.planner.cost.candidates import Load
from embark_jax.planner.cost.memory import STORED_TIERS
from embark_jax.planner.cost.work import Peak
from embark_jax.planner.search.instance import Instance

PEAK_HOT_USE = len(Peak)
ADDED = PEAK_HOT_USE + 1
"""Number of peaks that a candidate adds to."""
OF_STORAGES = [peak for peak in Peak if peak not in (Peak.UPDATE, Peak.STORE)]
"""Peaks that each storage has for itself; its use comes last."""


class Spread:
    """Candidates of an instance, spread evenly over all devices.

    Attributes:
      peaks: number of peaks.
      peak: ``[ADDED, candidates]`` number of each peak that a candidate adds to.
      mean: ``[ADDED, candidates]`` what it adds there on each device.
      largest: ``[ADDED, candidates]`` its largest shard, or 1 for the use of a storage.
      ms: ``[peaks]`` price of each.
      whole: ``[peaks]`` whether each is a whole number: that of partial sums, and the
        use of a storage.
      stored_bytes: ``[STORED_TIERS, candidates]`` bytes in host memory and on disks.
    """

    def __init__(self, instance: Instance):
        self.instance = instance
        candidates, objective = instance.candidates, instance.objective
        storages, devices = len(objective.storages), objective.devices
        loads = objective.of_devices(candidates.loads, at_least=True)
        self.mean, self.largest = mean, largest = np.zeros((2, ADDED, len(candidates)))
        means = candidates.reduced(np.add, loads) * candidates.column_shards / devices
        mean[: Peak.NODE] = means
        largest[: Peak.NODE] = candidates.reduced(np.maximum, loads)
        gpus = instance.workload.fleet.gpus_per_node
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
        self.ms = np.concatenate([prices, np.ones(3)])
        self.peaks = len(self.ms)
        self.whole = np.zeros(self.peaks, bool)
        self.whole[peak[[Peak.SUMS, Peak.NODE, Peak.USE, PEAK_HOT_USE]]] = True
        tiers = np.arange(len(STORED_TIERS))[:, None]
        stored = candidates.reduced(np.add, candidates.loads[Load.STORED_BYTES])
        in_tier = objective.tier[candidates.storage] == tiers
        self.stored_bytes = in_tier * stored * candidates.column_shards

    @functools.cached_property
    def undominated(self) -> np.ndarray:
        """``[candidates]`` whether no other of the same table and storage is as
        good in every peak, time and bytes; of equal candidates the first stays."""
        candidates = self.instance.candidates
        everywhere = [candidates.everywhere_ms, candidates.everywhere_bytes]
        of_places = [*everywhere, *self.stored_bytes]
        costs = np.concatenate([self.mean, self.largest, of_places])
        pairs = (
            candidates.table * len(self.instance.objective.storages)
            + candidates.storage
        )
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
