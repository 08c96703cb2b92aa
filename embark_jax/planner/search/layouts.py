"""The candidates that are worth a try.

Each number of hot rows that is worth a try cuts a table in two, and so does each number
of slots where the cold rows are in host memory or on a disk. A hot row takes a row's
memory on every device, a slot on one. The cold rows of each cut are laid out in each
cluster, exchange and split.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from embark_jax.planner.cost.loads import (
    CLUSTER_NAMES,
    EXCHANGE_NAMES,
    Cut,
    PricedCandidates,
)
from embark_jax.planner.cost.memory import STORED_TIERS, Memory
from embark_jax.planner.request.workload import TableUse, Workload
from embark_jax.planner.search import params
from embark_jax.plans.clusters import (
    CLUSTERS,
    DIRECT,
    EXCHANGES,
    FOR_SEQUENCES,
    REPLICATED,
    SHARDED,
)
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.options import Cluster, Exchange, Tier
from embark_jax.plans.tables import TableSpec

MIN_WIDTH = 8
"""Smallest number of columns of a shard: 32 bytes, the sector in which GPU memory is
read (https://docs.nvidia.com/cuda/cuda-c-best-practices-guide, coalesced access)."""
Layout = tuple[int, int, int, int]
"""Cluster and exchange, as numbers, row shards and column shards."""
HELD_BY_ALL: Layout = (
    CLUSTER_NAMES.index(REPLICATED),
    EXCHANGE_NAMES.index(DIRECT),
    1,
    1,
)


def worthwhile_candidates(
    requests: Sequence[tuple[TableUse, ForcedPlacement]],
    tables: Sequence[TableSpec],
    workload: Workload,
) -> PricedCandidates:
    """Returns the candidates that are worth a try, priced.

    Args:
      requests: for each group of alike tables its use, and what the user fixes.
      tables: all tables.
      workload: circumstances of the plan.
    """
    tiers = _offered_tiers(tables, workload)
    splits = _even_splits(workload.devices)
    # Going inside nodes first is worth it where partial sums are added up on the way.
    stages = min(workload.fleet.nodes, workload.fleet.gpus_per_node) > 1
    exchanges: dict[Cluster, Sequence[Exchange]] = {
        name: [
            exchange
            for exchange in cluster.exchanges
            if not EXCHANGES[exchange].staged or (stages and cluster.pools_at_owner)
        ]
        for name, cluster in CLUSTERS.items()
    }
    cuts: list[Cut] = []
    layouts = []
    for number, (use, force) in enumerate(requests):
        for cut in _cuts(number, use, force, workload, tiers):
            layouts += [
                (len(cuts), *layout)
                for layout in _layouts(cut, force, splits, exchanges)
            ]
            cuts.append(cut)
    return PricedCandidates(cuts, np.array(layouts), workload)


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


def _layouts(
    cut: Cut,
    force: ForcedPlacement,
    row_splits: Sequence[int],
    exchanges: Mapping[Cluster, Sequence[Exchange]],
) -> list[Layout]:
    """Returns the layouts of a cut's cold rows that are worth a try: halvings of
    columns, and these splits of rows that make at most one shard for each device."""
    layouts: list[Layout] = []
    for cluster in _clusters(cut, force, single_device=row_splits[-1] == 1):
        if CLUSTERS[cluster].replicated:
            layouts.append(HELD_BY_ALL)
            continue
        worthwhile = exchanges[cluster]
        for exchange in worthwhile if force.exchange is None else (force.exchange,):
            numbers = CLUSTER_NAMES.index(cluster), EXCHANGE_NAMES.index(exchange)
            splits = _splits(cut.cold, force, row_splits)
            layouts += [(*numbers, rows, columns) for rows, columns in splits]
    return layouts


def _clusters(
    cut: Cut, force: ForcedPlacement, single_device: bool
) -> Sequence[Cluster]:
    """Returns the clusters that a cut's cold rows may be in."""
    clusters: Sequence[Cluster] = CLUSTER_NAMES
    if cut.cold.sequence:
        clusters = FOR_SEQUENCES
    if force.cluster is not None:
        clusters = [force.cluster]
    elif force.sharded or cut.hot_rows or cut.cold.table.slots:
        clusters = [cluster for cluster in clusters if cluster in SHARDED]
    elif single_device:
        clusters = [REPLICATED]
    return [
        cluster
        for cluster in clusters
        if force.exchange in (None, *CLUSTERS[cluster].exchanges)
    ]


def _splits(
    use: TableUse, force: ForcedPlacement, row_splits: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yields row shards and column shards."""
    dim, devices = use.table.dim, row_splits[-1]
    halvings = [2**k for k in range(dim.bit_length())]
    splits = [m for m in halvings if dim % m == 0 and dim // m >= MIN_WIDTH] or [1]
    if force.column_shards is not None:
        splits = [force.column_shards]
    for columns in splits:
        if force.row_shards is not None:
            yield force.row_shards, columns
        elif force.devices is not None:
            yield max(1, len(force.devices) // columns), columns
        else:
            limit = min(use.rows, devices // columns)
            yield from ((shards, columns) for shards in row_splits if shards <= limit)


def _even_splits(devices: int) -> list[int]:
    """Returns numbers of row shards, ascending: halvings, and all even shares of the
    fleet."""
    halvings = {2**k for k in range(devices.bit_length())}
    return sorted(halvings | {n for n in range(1, devices + 1) if devices % n == 0})
