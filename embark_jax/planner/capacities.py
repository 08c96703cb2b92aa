"""How large the exchange buffers of a plan are.

Buffers are static. A capacity is what the statistics expect for the fullest pair of
devices, with slack; a batch that needs more is not applied but replayed with larger
buffers, so that a capacity is a matter of speed, never of correctness.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from embark_jax.planner.storage import Placement, Storage, lay_out
from embark_jax.planner.workload import Workload, shape_of
from embark_jax.tables import FeatureSpec

DEVIATIONS = 6.0
"""Standard deviations, of a sum of independent draws, kept above the expectation: as
seldom exceeded as once in 1e9 draws."""


def capacities(
    placements: Sequence[Placement],
    features: Sequence[FeatureSpec],
    workload: Workload,
) -> dict[str, int]:
    """Ids that one device may send to one other in a step, for each sharded storage.

    Args:
      placements: of all tables.
      features: of the model.
      workload: fleet, batch, skew and slack.
    """
    return {
        storage.name: _capacity(storage, features, workload)
        for storage in lay_out(placements, features, workload.devices)
        if not storage.replicated
    }


def _capacity(
    storage: Storage, features: Sequence[FeatureSpec], workload: Workload
) -> int:
    certain, expected = np.zeros(workload.devices), np.zeros(workload.devices)
    for placement in storage.placements:
        sure, likely = shape_of(placement, features, workload).sent_ids(workload)
        owners = storage.owners(placement.table.name)
        for row_shard, columns in enumerate(owners):
            np.add.at(certain, columns, sure[row_shard])
            np.add.at(expected, columns, likely[row_shard])
    return max(1, int(padded_ids(certain, expected, workload.capacity_slack).max()))


def padded_ids(certain: np.ndarray, expected: np.ndarray, slack: float) -> np.ndarray:
    """Places for so many ids: the slack is for wrong statistics, and where it is less
    than chance may need, chance decides."""
    chance = expected + DEVIATIONS * np.sqrt(expected)
    return np.ceil(certain + np.maximum(slack * expected, chance))


def least_room(capacity: np.ndarray, slack: float) -> np.ndarray:
    """Places of a capacity for each id expected, at least: chance takes the more, the
    fewer there are."""
    half = DEVIATIONS / 2
    expected = (np.sqrt(half**2 + capacity) - half) ** 2
    expected = np.minimum(expected, capacity / slack)
    return np.maximum(slack, 1 + DEVIATIONS / np.sqrt(np.maximum(expected, 1e-9)))


def grow(capacity: Mapping[str, int], needed: Mapping[str, int]) -> dict[str, int]:
    """Capacities that hold what a batch needed, with room so that few recompilations
    follow: at least half as much again as before where one overflowed."""
    return {
        name: have
        if needed[name] <= have
        else max(needed[name] * 5 // 4, have * 3 // 2)
        for name, have in capacity.items()
    }
