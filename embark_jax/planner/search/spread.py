"""The cost of candidates that are spread evenly, and which of them are dominated.

A candidate adds to the six peaks of its storage (``cost/objective.py``), to the use of
that storage and of the storage of its hot rows, to the update, and to the time of row
stores: ten *measures*, each in one *row* of the relaxation. Rows are numbered peak by
peak, those of all storages together; then come the rows for the use of storages, the
update, row stores, and last what is exposed of these, to which no candidate adds.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from embark_jax.planner.cost.loads import STORED_BYTES
from embark_jax.planner.cost.memory import STORED_TIERS
from embark_jax.planner.cost.objective import (
    PEAK_IDS,
    PEAK_NODE,
    PEAK_ROWS,
    PEAK_SUMS,
    PEAKS,
)
from embark_jax.planner.search.instance import Instance

USED, USED_HOT, UPDATE, STORE = range(len(PEAKS), len(PEAKS) + 4)
MEASURES = STORE + 1
UPDATE_ROW, STORE_ROW, EXPOSED_ROW = range(-3, 0)


@dataclasses.dataclass(frozen=True, eq=False)
class Spread:
    """Candidates, spread evenly over all devices.

    Attributes:
      rows: number of rows.
      row: ``[measures, candidates]`` row of each.
      mean: ``[measures, candidates]`` amount that a candidate adds to each device.
      largest: ``[measures, candidates]`` its largest shard, or 1 for the use of a
        storage.
      ms: ``[rows]`` price of each row.
      whole: ``[rows]`` whether its peak is a whole number: that of partial sums, and
        the use of a storage.
      alone_ms: ``[candidates]`` time of a table by itself.
      touched_bytes: ``[candidates]`` bytes of row gradients of a table by itself.
      stored_bytes: ``[STORED_TIERS, candidates]`` bytes in host memory and on disks.
    """

    rows: int
    row: np.ndarray
    mean: np.ndarray
    largest: np.ndarray
    ms: np.ndarray
    whole: np.ndarray
    alone_ms: np.ndarray
    touched_bytes: np.ndarray
    stored_bytes: np.ndarray


def spread_evenly(instance: Instance) -> Spread:
    """Spreads all candidates of an instance."""
    candidates, objective = instance.candidates, instance.objective
    storages, devices = len(objective.storages), objective.devices
    mean, largest = np.zeros((2, MEASURES, len(candidates)))
    counted = objective.counted(candidates.loads, at_least=True)
    measures = *PEAKS[:PEAK_NODE], UPDATE, STORE
    for measure, loads in zip(measures, counted, strict=True):
        mean[measure] = (
            candidates.reduced(np.add, loads) * candidates.column_shards / devices
        )
        largest[measure] = candidates.reduced(np.maximum, loads)
    gpus = instance.workload.fleet.gpus_per_node
    nodes = np.ceil(
        candidates.row_shards / gpus
    )  # on the fewest, each on another device
    largest[PEAK_NODE] = candidates.staged * largest[PEAK_SUMS]
    mean[PEAK_NODE] = (
        largest[PEAK_NODE] * nodes * candidates.column_shards * gpus / devices
    )
    largest[USED], largest[USED_HOT] = 1.0, candidates.hot_rows > 0
    row = np.arange(MEASURES)[:, None] * storages + candidates.storage
    row[USED_HOT] = USED * storages + np.maximum(candidates.hot_storage, 0)
    row[UPDATE] = of_update = (USED + 1) * storages
    row[STORE] = of_update + 1
    rows = of_update + 3
    ms = np.concatenate([objective.prices.reshape(-1), objective.fixed_ms, np.ones(3)])
    peak = np.arange(rows) // storages
    peak[of_update:] = UPDATE
    whole = np.isin(peak, (PEAK_SUMS, PEAK_NODE, USED))
    touched = np.minimum(mean[PEAK_IDS] * devices, mean[PEAK_ROWS])
    return Spread(
        rows,
        row,
        mean,
        largest,
        ms,
        whole,
        alone_ms=candidates.everywhere_ms + (ms[row] * mean).sum(axis=0),
        touched_bytes=objective.row_gradient_bytes[candidates.storage] * touched,
        stored_bytes=np.where(
            objective.tier[candidates.storage] == np.arange(len(STORED_TIERS))[:, None],
            candidates.reduced(np.add, candidates.loads[STORED_BYTES])
            * candidates.column_shards,
            0.0,
        ),
    )


def undominated(instance: Instance, spread: Spread) -> np.ndarray:
    """Returns ``[candidates]`` whether no other of the same table and storage is as
    good in every measure, time and bytes; of equal candidates the first stays."""
    candidates = instance.candidates
    measures = np.concatenate(
        [
            spread.mean,
            spread.largest,
            [
                candidates.everywhere_ms,
                candidates.everywhere_bytes,
                spread.touched_bytes,
                instance.stored_bytes,
            ],
        ]
    )
    pairs = candidates.table * len(instance.objective.storages) + candidates.storage
    order = np.argsort(pairs, kind="stable")
    measures, pairs = measures[:, order], pairs[order]
    keep = np.ones(len(pairs), bool)
    for shift in range(1, int(np.unique(pairs, return_counts=True)[1].max())):
        one, other = measures[:, :-shift], measures[:, shift:]
        alike = pairs[:-shift] == pairs[shift:]
        no_more = alike & (one <= other).all(axis=0)
        keep[shift:] &= ~no_more
        keep[:-shift] &= no_more | ~(alike & (other <= one).all(axis=0))
    undominated = np.zeros(len(pairs), bool)
    undominated[order] = keep
    return undominated
