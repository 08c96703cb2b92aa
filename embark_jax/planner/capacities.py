"""How large the exchange buffers of a plan are.

Buffers are static. A capacity is what the statistics expect for the fullest pair of
devices, with slack; a batch that needs more is not applied but replayed with larger
buffers, so that a capacity is a matter of speed, never of correctness.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from embark_jax.planner.statistics import expected_unique, row_shard_shares
from embark_jax.planner.storage import Cluster, Placement, Storage, lay_out
from embark_jax.tables import FeatureSpec

DEVIATIONS = 6.0
"""Standard deviations, of a sum of independent draws, kept above the expectation: as
seldom exceeded as once in 1e9 draws."""


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
      slack: multiple of the expectation, at least.
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
        name = placement.table.name
        ids = device_batch * sum(f.hotness for f in features if f.table == name)
        sure, likely = shard_ids(
            storage.cluster,
            placement.table.rows,
            placement.row_shards,
            ids,
            zipf_exponent,
            slack,
        )
        for row_shard, owners in enumerate(storage.owners(name)):
            np.add.at(certain, owners, sure[row_shard])
            np.add.at(expected, owners, likely[row_shard])
    return max(1, int(padded_ids(certain, expected, slack).max()))


def shard_ids(
    cluster: Cluster,
    rows: int,
    row_shards: int,
    ids: int,
    zipf_exponent: float,
    slack: float,
) -> tuple[np.ndarray, np.ndarray]:
    """What one device sends to each row shard of a table, in ids.

    Args:
      cluster: "rb" sends every id, "ub" every id once.
      rows, row_shards: of the table.
      ids: that a device's share of the batch has for the table.
      zipf_exponent, slack: as for ``capacities``.

    Returns:
      ``(certain, expected)``, ``[row_shards]`` each: what cannot be exceeded, where
      slack would go beyond it, or else the expectation.
    """
    shares = row_shard_shares(rows, row_shards, zipf_exponent)
    most = np.full(row_shards, float(ids))
    likely = ids * shares
    if cluster == "ub":
        shard_rows = (rows - np.arange(row_shards) + row_shards - 1) // row_shards
        most = np.minimum(most, shard_rows)
        distinct = expected_unique(rows, ids, zipf_exponent)
        likely = np.minimum(likely, distinct / row_shards)
    elif row_shards == 1:
        likely = most
    sure = likely * slack >= most
    return np.where(sure, most, 0.0), np.where(sure, 0.0, likely)


def padded_ids(certain: np.ndarray, expected: np.ndarray, slack: float) -> np.ndarray:
    """Places for so many ids: the slack is for wrong statistics, and where it is less
    than chance may need, chance decides."""
    chance = expected + DEVIATIONS * np.sqrt(expected)
    return np.ceil(certain + np.maximum(slack * expected, chance))


def grow(capacity: Mapping[str, int], needed: Mapping[str, int]) -> dict[str, int]:
    """Capacities that hold what a batch needed, with room so that few recompilations
    follow: at least half as much again as before where one overflowed."""
    return {
        name: have
        if needed[name] <= have
        else max(needed[name] * 5 // 4, have * 3 // 2)
        for name, have in capacity.items()
    }
