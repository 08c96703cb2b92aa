"""How large the exchange buffers of a plan are.

Buffers are static. A capacity is what the statistics expect for the fullest pair of
devices, with slack; a batch that needs more is not applied but replayed with larger
buffers, so that a capacity is a matter of speed, never of correctness.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from embark_jax.planner.statistics import expected_unique, row_shard_shares
from embark_jax.planner.storage import Placement, Storage, lay_out
from embark_jax.tables import FeatureSpec

DEVIATIONS = 6.0
"""Standard deviations, of a sum of independent draws, kept above the expectation."""


def capacities(
    placements: Sequence[Placement],
    features: Sequence[FeatureSpec],
    devices: int,
    batch_size: int,
    zipf_exponent: float = 0.0,
    slack: float = 1.25,
) -> dict[str, int]:
    """Ids that one device may send to one other in a step, for each sharded storage.

    Args:
      placements: of all tables.
      features: of the model.
      devices: in the fleet.
      batch_size: global, samples a step.
      zipf_exponent: of the ids within their table; 0 is uniform.
      slack: multiple of the expectation.
    """
    return {
        storage.name: _capacity(
            storage, features, devices, batch_size // devices, zipf_exponent, slack
        )
        for storage in lay_out(placements, devices)
        if not storage.replicated
    }


def _capacity(
    storage: Storage,
    features: Sequence[FeatureSpec],
    devices: int,
    device_batch: int,
    zipf_exponent: float,
    slack: float,
) -> int:
    certain, expected = np.zeros(devices), np.zeros(devices)
    for placement in storage.placements:
        ids = device_batch * sum(
            feature.hotness
            for feature in features
            if feature.table == placement.table.name
        )
        owners = storage.owners(placement.table.name)
        rows, shards = placement.table.rows, placement.row_shards
        shares = row_shard_shares(rows, shards, zipf_exponent)
        for j in range(shards):
            # Only a table in one piece is sure how many ids go to its owner.
            most = min(ids, placement.shard_rows(j)) if storage.cluster == "ub" else ids
            likely = most * 1.0
            if storage.cluster == "ub":
                distinct = expected_unique(rows, ids, zipf_exponent)
                likely = min(most, distinct / shards * slack, ids * shares[j] * slack)
            elif shards > 1:
                likely = min(most, ids * shares[j] * slack)
            for owner in owners[j]:
                if likely == most:
                    certain[owner] += most
                else:
                    expected[owner] += likely
    fullest = (certain + expected + DEVIATIONS * np.sqrt(expected)).max()
    return max(1, math.ceil(fullest))


def grow(capacity: Mapping[str, int], needed: Mapping[str, int]) -> dict[str, int]:
    """Capacities that hold what a batch needed, with room so that few recompilations
    follow: at least half as much again as before where one overflowed."""
    return {
        name: have
        if needed[name] <= have
        else max(needed[name] * 5 // 4, have * 3 // 2)
        for name, have in capacity.items()
    }
