"""Ways to lay out a table's rows: how many are hot, and where the others have room.

Each number of hot rows that is worth a try cuts a table in two, and so does each number
of slots where the cold rows are in host memory or on a disk. A hot row takes a row's
memory on every device, a slot on one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from embark_jax.planner.cost.memory import STORED_TIERS, Memory
from embark_jax.planner.request.workload import TableUse, Workload
from embark_jax.planner.search.params import SearchParams
from embark_jax.plans.clusters import REPLICATED
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.options import Tier
from embark_jax.plans.tables import TableSpec


class Way(NamedTuple):
    """One way to lay out a table's rows.

    Attributes:
      hot_rows: number of hot rows.
      hot: use of these rows; of one row if there are none.
      cold: use of the other rows, with their tier and slots.
    """

    hot_rows: int
    hot: TableUse
    cold: TableUse


def offered_tiers(tables: Sequence[TableSpec], memory: Memory) -> list[Tier]:
    """Returns the tiers that the planner may choose: host memory if the fleet says how
    fast it is, and disks if besides they are needed."""
    device = memory.workload.fleet.device
    nodes = memory.workload.fleet.nodes
    host_bytes = memory.stored_limit_bytes[STORED_TIERS.index("host")] * nodes
    row_bytes = memory.rows_bytes(tables)
    tiers: list[Tier] = ["device"]
    if device.host_bytes_per_s is not None:
        tiers.append("host")
    if device.disk_bytes_per_s is not None and row_bytes > host_bytes:
        tiers.append("disk")
    return tiers


def ways_of(
    use: TableUse,
    force: ForcedPlacement,
    workload: Workload,
    tiers: Sequence[Tier],
    params: SearchParams,
    coarse: bool,
) -> list[Way]:
    """Returns the ways to lay out a table that are worth a try.

    Args:
      use, force: use of the table, and what the user fixes.
      workload: circumstances of the plan.
      tiers: tiers that the planner may choose.
      params: how many are tried.
      coarse: whether only the least and the largest number of hot rows is tried, and a
        quarter of the numbers of slots.
    """
    shares = params.hot_shares
    if coarse:
        shares = sorted({min(shares), max(shares)})
    ways = []
    for hot_rows in _hot_rows(use, force, shares if workload.devices > 1 else ()):
        # A use without hot rows must still have a row to weigh.
        hot = use.of_rows(0, max(1, hot_rows))
        cold = use.of_rows(hot_rows, use.rows)
        if use.table.tier != "auto":
            choices: Sequence[Tier] = [use.table.tier]
        elif force.cluster == REPLICATED:
            choices = ["device"]
        else:
            choices = tiers
        ways += [
            Way(hot_rows, hot, cold.in_tier(tier, slots))
            for tier in choices
            for slots in _slots(cold, tier, workload, params, coarse)
        ]
    return ways


def fewest_slots(use: TableUse, workload: Workload, params: SearchParams) -> int:
    """Returns the fewest slots of a cached table."""
    unique = use.unique_rows(workload.batch_size)
    return min(use.rows, max(1, math.ceil(params.slot_batches * unique)))


def _slots(
    use: TableUse, tier: Tier, workload: Workload, params: SearchParams, coarse: bool
) -> list[int | None]:
    """Returns numbers of slots: those of the user, or from the fewest to all rows."""
    if tier == "device":
        return [None]
    if use.table.slots is not None:
        return [use.table.slots]
    fewest = fewest_slots(use, workload, params)
    steps = math.ceil(math.log(use.rows / fewest) / math.log(params.slot_ratio))
    if coarse:
        steps = -(-steps // 4)
    slots = np.geomspace(fewest, use.rows, steps + 1).astype(np.int64)
    if use.table.tier == "auto" and steps:  # with a slot for each row it is on devices
        slots = slots[:-1]
    return np.unique(slots).tolist()


def _hot_rows(
    use: TableUse, force: ForcedPlacement, shares: Sequence[float]
) -> list[int]:
    """Returns the numbers of hot rows that are worth a try: none, and as many as take
    certain shares of the ids, if those are few and rows are numbered by frequency. A
    table whose shards are forced in any way has as many as are forced."""
    if force.hot_rows is not None:
        return [force.hot_rows]
    if force.is_fixed or not use.skew.in_order:
        return [0]

    def share_of(hot_rows: int) -> float:
        return use.skew.share(use.rows, 0, hot_rows)

    numbers = {0}
    for share in shares:
        limit = int(share * use.rows)
        if limit < 1 or share_of(limit) < share:
            continue
        low = 0
        high = limit  # the fewest rows that take the share, or slightly more
        while high - low > max(1, high // 8):
            middle = (low + high) // 2
            if share_of(middle) < share:
                low = middle
            else:
                high = middle
        numbers.add(high)
    return sorted(numbers)
