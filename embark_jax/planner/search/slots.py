"""Chooses the slots of cached tables for which the user gives no number.

Slots are device memory: the search shares out all memory that a plan with the fewest
possible slots leaves. The worth of a slot is the number of ids that ask for its row.
Tables hold their hottest rows, at least nearly so where ``evict`` is "lru".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from embark_jax.planner.cost.memory import Memory
from embark_jax.planner.request.workload import TableUse, Workload, table_uses
from embark_jax.plans.clusters import SHARDED
from embark_jax.plans.plan import Plan
from embark_jax.plans.storage import StorageKind
from embark_jax.plans.tables import FeatureSpec, TableSpec

LEAST_BATCHES = 2.0
"""Smallest number of slots, as a multiple of the rows that a batch is expected to ask
for."""
SHARE = 0.9
"""Share of the remaining memory that slots take: devices are not even."""
STRETCHES = 64
"""Number of row ranges, from hot to cold, that get slots one by one."""


def choose_slots(
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    workload: Workload,
    plan_with: Callable[[Sequence[TableSpec]], Plan],
) -> tuple[TableSpec, ...]:
    """Returns the tables, each cached one with its slots.

    Args:
      tables, features: the model.
      workload: circumstances of the plan.
      plan_with: function that plans the tables it is given.
    """
    uses = table_uses(tables, features, workload)
    free = [i for i, table in enumerate(tables) if table.cached and not table.slots]
    slots = {i: _fewest(uses[i], workload.batch_size) for i in free}
    if not free:
        return tuple(tables)
    least = plan_with(_with_slots(tables, slots))
    assert least.prediction is not None
    memory = Memory(workload)
    spare_bytes = memory.limit_bytes - max(least.prediction.device_bytes)
    spare_bytes *= SHARE * workload.devices
    stretches = sorted(
        stretch for i in free for stretch in _stretches(i, uses[i], slots[i], memory)
    )
    for _, i, rows, row_bytes in stretches:
        more = min(rows, int(spare_bytes / row_bytes))
        slots[i] += more
        spare_bytes -= more * row_bytes
    return _with_slots(tables, slots)


def _fewest(use: TableUse, batch: int) -> int:
    ids = batch * use.hotness * use.filled
    unique = use.skew.expected_unique(use.rows, ids)
    return min(use.rows, max(1, math.ceil(LEAST_BATCHES * unique)))


def _stretches(
    table: int, use: TableUse, first: int, memory: Memory
) -> list[tuple[float, int, int, float]]:
    """Returns for each row range: minus the ids a sample for each byte, table,
    rows, and bytes of a row."""
    row_bytes = memory.slot_bytes(StorageKind(SHARDED[0], use.dim, tier=use.tier))
    edges = np.unique(np.geomspace(first, use.rows, STRETCHES + 1).astype(np.int64))
    ids = use.hotness * use.filled
    shares = [use.skew.share(use.rows, 0, int(edge), True) for edge in edges]
    rows = np.diff(edges)
    worth = ids * np.diff(shares) / (rows * row_bytes)
    return [
        (-float(each), table, int(count), float(row_bytes))
        for each, count in zip(np.minimum.accumulate(worth), rows, strict=True)
    ]


def _with_slots(
    tables: Sequence[TableSpec], slots: dict[int, int]
) -> tuple[TableSpec, ...]:
    return tuple(
        dataclasses.replace(table, slots=slots[i]) if i in slots else table
        for i, table in enumerate(tables)
    )
