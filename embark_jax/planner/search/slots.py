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
from embark_jax.planner.search.params import SearchParams
from embark_jax.plans.clusters import SHARDED
from embark_jax.plans.plan import Plan
from embark_jax.plans.storage import StorageKind
from embark_jax.plans.tables import FeatureSpec, TableSpec


def choose_slots(
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    workload: Workload,
    plan_with: Callable[[Sequence[TableSpec]], Plan],
    params: SearchParams,
) -> tuple[TableSpec, ...]:
    """Returns the tables, each cached one with its slots.

    Args:
      tables, features: the model.
      workload: circumstances of the plan.
      plan_with: function that plans the tables it is given.
      params: how many slots there are at least, and how finely they are given out.
    """
    uses = table_uses(tables, features, workload)
    free = [i for i, table in enumerate(tables) if table.cached and not table.slots]
    slots = {i: _fewest(uses[i], workload.batch_size, params) for i in free}
    if not free:
        return tuple(tables)
    least = plan_with(_with_slots(tables, slots))
    assert least.prediction is not None
    memory = Memory(workload)
    spare_bytes = memory.limit_bytes - max(least.prediction.device_bytes)
    spare_bytes *= params.slot_share * workload.devices
    ranges = sorted(
        range_ for i in free for range_ in _ranges(i, uses[i], slots[i], memory, params)
    )
    for _, i, rows, row_bytes in ranges:
        more = min(rows, int(spare_bytes / row_bytes))
        slots[i] += more
        spare_bytes -= more * row_bytes
    return _with_slots(tables, slots)


def _fewest(use: TableUse, batch: int, params: SearchParams) -> int:
    ids = batch * use.hotness * use.filled
    unique = use.skew.expected_unique(use.rows, ids)
    return min(use.rows, max(1, math.ceil(params.slot_batches * unique)))


def _ranges(
    table: int, use: TableUse, first: int, memory: Memory, params: SearchParams
) -> list[tuple[float, int, int, float]]:
    """Returns for each row range: minus the ids a sample for each byte, table,
    rows, and bytes of a row."""
    row_bytes = memory.slot_bytes(StorageKind(SHARDED[0], use.dim, tier=use.tier))
    ends = np.geomspace(first, use.rows, params.slot_ranges + 1)
    edges = np.unique(ends.astype(np.int64))
    ids = use.hotness * use.filled
    shares = [use.skew.share(use.rows, 0, int(edge), True) for edge in edges]
    rows = np.diff(edges)
    worth = ids * np.diff(shares) / (rows * row_bytes)
    return [
        (-float(of_row), table, int(count), float(row_bytes))
        for of_row, count in zip(np.minimum.accumulate(worth), rows, strict=True)
    ]


def _with_slots(
    tables: Sequence[TableSpec], slots: dict[int, int]
) -> tuple[TableSpec, ...]:
    return tuple(
        dataclasses.replace(table, slots=slots[i]) if i in slots else table
        for i, table in enumerate(tables)
    )
