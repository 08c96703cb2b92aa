"""One request as the search sees it: groups of alike tables and their candidates."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from embark_jax.planner.cost.loads import (
    CLUSTER_NAMES,
    EXCHANGE_NAMES,
    ROWS,
    STORED_BYTES,
    PricedCandidates,
    price_candidates,
    with_hot_rows,
)
from embark_jax.planner.cost.memory import Memory
from embark_jax.planner.cost.objective import PEAK_ROWS, Objective
from embark_jax.planner.request.workload import TableUse, Workload, table_uses
from embark_jax.planner.search.params import DEFAULT, SearchParams
from embark_jax.planner.search.ways import Way, offered_tiers, ways_of
from embark_jax.plans.clusters import (
    CLUSTERS,
    DIRECT,
    EXCHANGES,
    FOR_SEQUENCES,
    REPLICATED,
    SHARDED,
)
from embark_jax.plans.forced import FREE, ForcedPlacement
from embark_jax.plans.options import Cluster, Exchange
from embark_jax.plans.plan import MAX_SLOTS
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec

MIN_WIDTH = 8
"""Smallest number of columns of a shard: 32 bytes, the sector in which GPU memory is
read (https://docs.nvidia.com/cuda/cuda-c-best-practices-guide, coalesced access)."""


@dataclasses.dataclass(frozen=True, eq=False)
class Instance:
    """The search's form of one request.

    Attributes:
      workload, objective: circumstances of the plan, and what prices it.
      tables: tables of the model.
      group: ``[tables]`` number of the group of alike tables: equal in use, and in what
        is forced.
      counts: ``[groups]`` number of tables.
      uses: ``[groups]`` use of each table.
      owners: ``[groups]`` forced owners, or None.
      candidates: candidates of all groups, group by group; a candidate's ``table`` is
        a group.
      params: how much is tried.
    """

    workload: Workload
    objective: Objective
    tables: Sequence[TableSpec]
    group: np.ndarray
    counts: np.ndarray
    uses: Sequence[TableUse]
    forced: Sequence[ForcedPlacement]
    candidates: PricedCandidates
    params: SearchParams = DEFAULT

    @property
    def memory(self) -> Memory:
        return self.objective.memory

    @property
    def owners(self) -> list[np.ndarray | None]:
        return [
            None if force.devices is None else np.array(force.devices, np.int64)
            for force in self.forced
        ]

    @property
    def is_large(self) -> bool:
        """Whether it has so many unlike tables that the search tries fewer splits, and
        only the best start."""
        return len(self.counts) > self.params.large_model

    @functools.cached_property
    def shard_bytes(self) -> np.ndarray:
        """``[candidates]`` least bytes of a device that has their largest shard: its
        rows, and what every device holds."""
        candidates = self.candidates
        rows = candidates.reduced(np.maximum, candidates.loads[ROWS])
        row_bytes = self.objective.held_bytes[PEAK_ROWS][candidates.storage]
        return row_bytes * rows + candidates.everywhere_bytes

    @functools.cached_property
    def stored_bytes(self) -> np.ndarray:
        """``[candidates]`` bytes of rows in host memory and on disks, as bytes of
        device memory that are as large a share of its limit."""
        candidates = self.candidates
        stored = candidates.reduced(np.add, candidates.loads[STORED_BYTES])
        weights = self.objective.stored_weights[candidates.storage]
        return weights * stored * candidates.column_shards


def make_instance(
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    forced: Mapping[str, ForcedPlacement],
    workload: Workload,
    params: SearchParams = DEFAULT,
) -> Instance:
    """Makes the instance of one request.

    Args:
      tables, features, forced: as for ``plan``.
      workload: circumstances of the plan.
      params: how much is tried.
    """
    memory = Memory(workload)
    numbers: dict[tuple[TableUse, ForcedPlacement], int] = {}
    forces = [forced.get(table.name, FREE) for table in tables]
    for table, force in zip(tables, forces, strict=True):
        skew = workload.statistics.skew(table)
        if force.hot_rows and skew is not None and not skew.in_order:
            raise ValueError(
                f"table {table.name!r}: hot_rows is {force.hot_rows}, but by the "
                "statistics its first rows are not the most frequent ones; number its "
                "rows by frequency (`embark data prepare --by-frequency`, or "
                "embark_jax.by_frequency), or leave hot_rows out"
            )
    keys = zip(table_uses(tables, features, workload), forces, strict=True)
    group = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
    coarse = len(numbers) > params.large_model
    splits = _even_splits(workload.devices, coarse)
    cached_rows = sum(table.rows for table in tables if table.cached)
    tiers = offered_tiers(tables, memory)
    ways = [
        (g, force, way)
        for g, (use, force) in enumerate(numbers)
        for way in ways_of(use, force, workload, tiers, params, coarse)
    ]
    exchanges: dict[Cluster, Sequence[Exchange]] = {
        cluster: worthwhile_exchanges(cluster, workload) for cluster in CLUSTERS
    }
    choices = [
        (number, *choice)
        for number, (_, force, way) in enumerate(ways)
        for choice in _choices(way, force, cached_rows, splits, exchanges)
    ]
    in_dp = [(number, *HELD_BY_ALL) for number in range(len(ways))]
    candidates = with_hot_rows(
        price_candidates([way.cold for *_, way in ways], np.array(choices), workload),
        price_candidates([way.hot for *_, way in ways], np.array(in_dp), workload),
        table=np.array([g for g, *_ in ways]),
        hot_rows=np.array([way.hot_rows for *_, way in ways]),
    )
    return Instance(
        workload=workload,
        objective=Objective(candidates.storages, workload),
        tables=tables,
        group=group,
        counts=np.bincount(group),
        uses=[use for use, _ in numbers],
        forced=[force for _, force in numbers],
        candidates=candidates,
        params=params,
    )


Choice = tuple[int, int, int, int]
"""Cluster and exchange, as numbers, row shards and column shards."""
HELD_BY_ALL: Choice = (
    CLUSTER_NAMES.index(REPLICATED),
    EXCHANGE_NAMES.index(DIRECT),
    1,
    1,
)


def _choices(
    way: Way,
    force: ForcedPlacement,
    cached_rows: int,
    row_splits: Sequence[int],
    exchanges: Mapping[Cluster, Sequence[Exchange]],
) -> list[Choice]:
    """Returns the candidates of cold rows that are worth a try: halvings of columns and
    these splits of rows that make at most one shard for each device, and shards whose
    rows all have numbers, if there are any. Memory limits how many rows a device has of
    other tables, but not of cached ones: all of those together must have numbers."""
    clusters: tuple[Cluster, ...] = tuple(exchanges)
    if way.cold.sequence:
        clusters = tuple(cluster for cluster in clusters if cluster in FOR_SEQUENCES)
    if force.cluster is not None:
        clusters = (force.cluster,)
    elif force.sharded or way.hot_rows or way.cold.table.slots:
        clusters = tuple(cluster for cluster in clusters if cluster in SHARDED)
    elif row_splits[-1] == 1 and REPLICATED in clusters:  # a single device
        clusters = (REPLICATED,)
    if force.exchange is not None:
        clusters = tuple(
            cluster
            for cluster in clusters
            if force.exchange in CLUSTERS[cluster].exchanges
        )
    cold_rows = way.cold.rows
    choices: list[Choice] = []
    for cluster in clusters:
        if CLUSTERS[cluster].replicated:
            choices.append(HELD_BY_ALL)
            continue
        worthwhile = exchanges.get(cluster, (DIRECT,))
        for exchange in worthwhile if force.exchange is None else (force.exchange,):
            numbers = CLUSTER_NAMES.index(cluster), EXCHANGE_NAMES.index(exchange)
            splits = _splits(way.cold.table.dim, cold_rows, force, row_splits)
            choices += [(*numbers, rows, columns) for rows, columns in splits]
    numbered_rows = cached_rows if way.cold.table.slots else cold_rows
    numbered = [
        choice for choice in choices if -(-numbered_rows // choice[2]) <= MAX_SLOTS
    ]
    return numbered or choices


def worthwhile_exchanges(cluster: Cluster, workload: Workload) -> list[Exchange]:
    """Returns the exchanges of a cluster that may be worth their price: those that go
    inside nodes first only where they add up partial sums on the way."""
    fleet, properties = workload.fleet, CLUSTERS[cluster]

    def adds_up(exchange: Exchange) -> bool:
        stages = EXCHANGES[exchange].reaches(fleet.nodes, fleet.gpus_per_node)
        return properties.pools_at_owner and len(stages) > 1

    return [
        exchange
        for exchange in properties.exchanges
        if adds_up(exchange) or not EXCHANGES[exchange].staged
    ]


def _splits(
    dim: int, rows: int, force: ForcedPlacement, row_splits: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yields row shards and column shards."""
    devices = row_splits[-1]
    for columns in _column_splits(dim, force):
        if force.row_shards is not None:
            yield force.row_shards, columns
        elif force.devices is not None:
            yield max(1, len(force.devices) // columns), columns
        else:
            limit = min(rows, devices // columns)
            yield from ((shards, columns) for shards in row_splits if shards <= limit)


def _column_splits(dim: int, force: ForcedPlacement) -> list[int]:
    if force.column_shards is not None:
        return [force.column_shards]
    halvings = [2**k for k in range(dim.bit_length())]
    splits = [m for m in halvings if dim % m == 0 and dim // m >= MIN_WIDTH]
    return splits or [1]


def _even_splits(devices: int, coarse: bool) -> list[int]:
    """Returns numbers of row shards, ascending: halvings, and one for each device;
    unless ``coarse``, also all even shares of the fleet."""
    halvings = {2**k for k in range(devices.bit_length())}
    shares = {n for n in range(1, devices + 1) if devices % n == 0}
    return sorted(halvings | ({devices} if coarse else shares))


def forced_problems(
    table: TableSpec, force: ForcedPlacement, devices: int
) -> list[str]:
    """Lists what is impossible about a forced placement."""
    columns = 1 if force.column_shards is None else force.column_shards
    rows = force.row_shards
    owners = force.devices
    exchange = force.exchange or DIRECT
    able: list[Cluster] = [
        name for name in SHARDED if exchange in CLUSTERS[name].exchanges
    ]
    cluster = force.cluster or (able or list(SHARDED))[0]
    if rows is None:
        rows = max(1, len(owners or ()) // max(1, columns))
    if owners is None:
        owners = () if cluster == REPLICATED else (0,) * (rows * columns)
    if table.tier == "auto":
        table = dataclasses.replace(table, tier="device", slots=None)
    placement = Placement(
        table=table,
        cluster=cluster,
        row_shards=rows,
        column_shards=columns,
        devices=owners,
        exchange=exchange,
        hot_rows=force.hot_rows or 0,
    )
    return placement.problems(devices)
