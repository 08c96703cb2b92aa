"""The candidates that are worth a try.

Each number of hot rows that is worth a try cuts a table in two, and so does each number
of slots where the cold rows are in host memory or on a disk. A hot row takes a row's
memory on every device, a slot on one. The cold rows of each cut are laid out in each
cluster, exchange and split.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from embark_jax.planner.cost.candidates import (
    CLUSTER_NAMES,
    EXCHANGE_NAMES,
    HELD_BY_ALL,
    Candidates,
    Cut,
    Layout,
)
from embark_jax.planner.cost.memory import STORED_TIERS, Memory
from embark_jax.planner.request.workload import TableUse, Workload
from embark_jax.planner.search import params
from embark_jax.plans.clusters import (
    CLUSTERS,
    EXCHANGES,
    FOR_SEQUENCES,
    REPLICATED,
    SHARDED,
)
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.options import ClusterName, Tier
from embark_jax.plans.plan import MAX_SLOTS
from embark_jax.plans.tables import TableSpec

MIN_WIDTH = 8
"""Smallest number of columns of a shard: 32 bytes, the sector in which GPU memory is
read (https://docs.nvidia.com/cuda/cuda-c-best-practices-guide, coalesced access)."""


def worthwhile_candidates(
    requests: Sequence[tuple[TableUse, ForcedPlacement]],
    tables: Sequence[TableSpec],
    workload: Workload,
) -> Candidates:
    """Returns the candidates that are worth a try, priced.

    Args:
      requests: for each group of alike tables its use, and what the user fixes.
      tables: all tables.
      workload: circumstances of the plan.
    """
    tiers = _offered_tiers(tables, workload)
    cuts: list[Cut] = []
    layouts = []
    for number, (use, force) in enumerate(requests):
        for cut in _cuts(number, use, force, workload, tiers):
            of_cut = _layouts(cut, force, workload)
            layouts += [(len(cuts), *layout) for layout in of_cut]
            cuts.append(cut)
    return Candidates(cuts, layouts, workload)


def fewest_slots(use: TableUse, workload: Workload) -> int:
    """Returns the fewest slots of a cached table."""
    unique = use.unique_rows(workload.batch_size)
    return min(use.rows, max(1, math.ceil(params.SLOT_BATCHES * unique)))


def _offered_tiers(tables: Sequence[TableSpec], workload: Workload) -> list[Tier]:
    """Returns the tiers that the planner may choose: host memory if the fleet says how
    fast it is, and disks if besides they are needed."""
    memory, fleet = Memory(workload), workload.fleet
    host_bytes = memory.stored_limit_bytes[STORED_TIERS.index("host")] * fleet.nodes
    tiers: list[Tier] = ["device"]
    if fleet.device.host_bytes_per_s is not None:
        tiers.append("host")
    needs_disk = memory.rows_bytes(tables) > host_bytes
    if fleet.device.disk_bytes_per_s is not None and needs_disk:
        tiers.append("disk")
    return tiers


def _cuts(
    number: int,
    use: TableUse,
    force: ForcedPlacement,
    workload: Workload,
    tiers: Sequence[Tier],
) -> Iterator[Cut]:
    """Yields the cuts of a table that are worth a try."""
    if use.table.tier != "auto":
        tiers = [use.table.tier]
    elif force.cluster == REPLICATED:
        tiers = ["device"]
    for hot_rows in _hot_rows(use, force, workload.devices):
        hot = use.of_rows(0, hot_rows) if hot_rows else None
        cold = use.of_rows(hot_rows, use.rows)
        for tier in tiers:
            for slots in _slots(cold, tier, workload):
                yield Cut(number, cold.in_tier(tier, slots), hot_rows, hot)


def _slots(use: TableUse, tier: Tier, workload: Workload) -> Sequence[int | None]:
    """Returns numbers of slots: those of the user, or from the fewest to all rows."""
    if tier == "device":
        return [None]
    if use.table.slots is not None:
        return [use.table.slots]
    fewest = fewest_slots(use, workload)
    steps = math.ceil(math.log(use.rows / fewest) / math.log(params.SLOT_RATIO))
    slots = np.geomspace(fewest, use.rows, steps + 1).astype(np.int64)
    if use.table.tier == "auto" and steps:  # with a slot for each row it is on devices
        slots = slots[:-1]
    return np.unique(slots).tolist()


def _hot_rows(use: TableUse, force: ForcedPlacement, devices: int) -> list[int]:
    """Returns the numbers of hot rows that are worth a try: none, and as many as take
    certain shares of the ids, if those are few and rows are numbered by frequency."""
    if force.hot_rows is not None:
        return [force.hot_rows]
    if devices == 1 or force.cluster == REPLICATED or not use.skew.in_order:
        return [0]

    def share_of(hot_rows: int) -> float:
        return use.skew.share(use.rows, 0, hot_rows)

    numbers = {0}
    for share in params.HOT_SHARES:
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


def _layouts(cut: Cut, force: ForcedPlacement, workload: Workload) -> Iterator[Layout]:
    """Yields the layouts of a cut's cold rows that are worth a try. An exchange that
    goes inside nodes first is where partial sums are added up on the way."""
    fleet = workload.fleet
    # On one host device other clusters only sort more ids: by 600 steps of quickstart
    # 140,000 samples a second in DP are 115,000 in UB, which placeholders do not tell.
    alone = fleet.devices == 1 and fleet.shared
    for cluster in _clusters(cut, force, alone):
        properties = CLUSTERS[cluster]
        if properties.replicated:
            if cut.cold.rows <= MAX_SLOTS:
                yield HELD_BY_ALL
            continue
        adds_up = (
            properties.pools_at_owner and min(fleet.nodes, fleet.gpus_per_node) > 1
        )
        for exchange in properties.exchanges:
            worthwhile = adds_up or not EXCHANGES[exchange].staged
            if force.exchange == exchange or (force.exchange is None and worthwhile):
                numbers = CLUSTER_NAMES.index(cluster), EXCHANGE_NAMES.index(exchange)
                for split in _splits(cut.cold, force, fleet.devices):
                    yield *numbers, *split


def _clusters(cut: Cut, force: ForcedPlacement, alone: bool) -> Sequence[ClusterName]:
    """Returns the clusters that a cut's cold rows may be in; ``alone`` on one host
    device."""
    clusters: Sequence[ClusterName] = CLUSTER_NAMES
    if cut.cold.sequence:
        clusters = FOR_SEQUENCES
    if force.cluster is not None:
        clusters = [force.cluster]
    elif force.sharded or cut.hot_rows or cut.cold.table.slots:
        clusters = [cluster for cluster in clusters if cluster in SHARDED]
    elif alone:
        clusters = [REPLICATED]
    return [
        cluster
        for cluster in clusters
        if force.exchange in (None, *CLUSTERS[cluster].exchanges)
    ]


def _splits(
    use: TableUse, force: ForcedPlacement, devices: int
) -> Iterator[tuple[int, int]]:
    """Yields row shards and column shards: halvings of columns, and even splits of rows
    that make at most one shard for each device, or one for each forced owner."""
    dim = use.table.dim
    halvings = [2**k for k in range(dim.bit_length())]
    splits = [m for m in halvings if dim % m == 0 and dim // m >= MIN_WIDTH] or [1]
    if force.column_shards is not None:
        splits = [force.column_shards]
    for columns in splits:
        if force.devices is not None:
            rows = force.row_shards or len(force.devices) // columns
            if rows * columns == len(force.devices):
                yield rows, columns
        elif force.row_shards is not None:
            yield force.row_shards, columns
        else:
            limit = min(use.rows, devices // columns)
            yield from ((n, columns) for n in _even_splits(devices) if n <= limit)


@functools.cache
def _even_splits(devices: int) -> list[int]:
    """Returns numbers of row shards, ascending: halvings, and all even shares of the
    fleet."""
    halvings = {2**k for k in range(devices.bit_length())}
    return sorted(halvings | {n for n in range(1, devices + 1) if devices % n == 0})
