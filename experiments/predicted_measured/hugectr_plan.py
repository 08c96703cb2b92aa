"""The placements of MLPerf's DLRM-DCNv2 submissions, as their code computes them.

All run the same planner (``sharding/planner.py`` beside the ``train.py`` of each). It
knows of a table its rows and ids a sample. Tables with few rows are replicated. Of the
others it places shards, those with most ids first, each on the cheapest bin (a GPU, or
a node) that has room and no shard of that table; then the table of the heaviest shard
that can be halved is halved, and all are placed anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from embark_jax.plans.fleet import Fleet
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec

ROUNDS = 20
VALUE_BYTES = 8
"""Of a parameter and its state in Adagrad."""
TABLE_BYTES = 60e9
"""Most bytes of tables on a GPU: ``memory_cap_for_embedding``."""
WORK_RATIO = 4
"""``mem_comm_work_ratio``: memory work over communication work."""

Sharding = Literal["auto", "hier_auto"]
"""Whether a bin is a GPU, or a node, over whose GPUs its rows are spread."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a submission's ``config_*.sh``: kind of bins, price of a shard
    as a ratio of bandwidths, and size in GB from which a table isn't replicated."""

    sharding: Sharding
    mem_comm_bw_ratio: float
    dp_threshold_gb: float


def plan(
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    fleet: Fleet,
    settings: Settings,
) -> list[Placement]:
    """Returns the placements.

    Args:
      tables, features: the model, a feature for each table.
      fleet: the machines.
      settings: settings of the submission.

    Raises:
      ValueError: if the tables do not fit.
    """
    gpus = fleet.gpus_per_node if settings.sharding == "hier_auto" else 1
    bins = fleet.devices // gpus
    hotness = np.array([feature.hotness for feature in features], float)
    table_bytes = np.array([t.rows * t.dim * VALUE_BYTES for t in tables], float)
    replicated = table_bytes < settings.dp_threshold_gb * 1e9
    room_bytes = TABLE_BYTES * gpus
    if table_bytes.sum() / bins > room_bytes:
        raise ValueError("the tables do not fit, whatever their shards")
    room_bytes -= table_bytes[replicated].sum()
    sharded = np.flatnonzero(~replicated)
    shard_cost = settings.mem_comm_bw_ratio / WORK_RATIO

    splits = np.where(replicated, 0, 1)
    everywhere = [list(range(bins))] * len(tables)
    best_cost, best = hotness.sum() / bins + shard_cost * len(tables), everywhere
    for _ in range(ROUNDS):
        owners, cost, overfull = _place(
            sharded, splits, hotness, table_bytes, room_bytes, shard_cost, bins
        )
        if overfull is None:
            if cost < best_cost:
                best_cost, best = cost, owners
            heaviest = sorted(sharded, key=lambda i: -hotness[i] / splits[i])
            halved = next((i for i in heaviest if 2 * splits[i] <= bins), None)
        else:
            halved = overfull if 2 * splits[overfull] <= bins else None
        if halved is None:
            break
        splits[halved] *= 2
    return [
        Placement(table, "dp") if replicated[i] else _over_gpus(table, best[i], gpus)
        for i, table in enumerate(tables)
    ]


def _place(
    sharded: np.ndarray,
    splits: np.ndarray,
    hotness: np.ndarray,
    table_bytes: np.ndarray,
    room_bytes: float,
    shard_cost: float,
    bins: int,
) -> tuple[list[list[int]], float, int | None]:
    """Returns the bins of each table's shards, the cost of the fullest bin, and the
    table that found no room, if one did not."""
    costs, used_bytes = np.zeros(bins), np.zeros(bins)
    owners: list[list[int]] = [[] for _ in splits]
    for i in sorted(sharded, key=lambda i: -hotness[i] / splits[i]):
        for _ in range(splits[i]):
            free = used_bytes + table_bytes[i] / splits[i] <= room_bytes
            free[owners[i]] = False
            if not free.any():
                return owners, float(costs.max()), int(i)
            cheapest = int(np.argmin(np.where(free, costs, np.inf)))
            owners[i].append(cheapest)
            costs[cheapest] += hotness[i] / splits[i] + shard_cost
            used_bytes[cheapest] += table_bytes[i] / splits[i]
    return owners, float(costs.max()), None


def _over_gpus(table: TableSpec, owners: Sequence[int], gpus: int) -> Placement:
    """Returns the placement on the GPUs of these bins: a bin's shard of rows is spread
    over its GPUs."""
    devices = np.array(sorted(owners)) * gpus + np.arange(gpus)[:, None]
    return Placement(
        table, "rb", devices.size, devices=tuple(map(int, devices.reshape(-1)))
    )
