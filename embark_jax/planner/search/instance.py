"""One request as the search sees it: groups of alike tables and their candidates."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from embark_jax.planner.cost.candidates import (
    CLUSTERS,
    EXCHANGES,
    Candidates,
    weigh,
)
from embark_jax.planner.cost.memory import Memory
from embark_jax.planner.cost.model import CostModel
from embark_jax.planner.cost.objective import Objective
from embark_jax.planner.layout.plan import MAX_SLOTS
from embark_jax.planner.layout.storage import Exchange, Placement
from embark_jax.planner.request.forced import FREE, ForcedPlacement
from embark_jax.planner.request.workload import TableUse, Workload, table_uses
from embark_jax.tables import FeatureSpec, TableSpec

MIN_WIDTH = 8
"""Columns of a shard at least: 32 bytes, the sector in which GPU memory is read
(https://docs.nvidia.com/cuda/cuda-c-best-practices-guide, coalesced access)."""


@dataclasses.dataclass(frozen=True, eq=False)
class Instance:
    """One request.

    Attributes:
      workload, model, memory, objective: what is planned for, and what prices it.
      tables: the model's; one with hot rows is there twice, as two tables to search:
        first its hot rows, in DP, then the cold ones.
      rows: ``[tables]`` which rows of it are meant.
      group: ``[tables]`` which tables are alike: in use, and in what is forced.
      counts: ``[groups]`` tables of each.
      owners: ``[groups]`` those that are forced, or None.
      candidates: of all groups; a candidate's ``table`` is a group.
    """

    workload: Workload
    model: CostModel
    memory: Memory
    objective: Objective
    tables: Sequence[TableSpec]
    rows: Sequence[range]
    group: np.ndarray
    counts: np.ndarray
    forced: Sequence[ForcedPlacement]
    candidates: Candidates

    @property
    def owners(self) -> list[np.ndarray | None]:
        return [
            None if force.devices is None else np.array(force.devices, np.int64)
            for force in self.forced
        ]

    def allowed(self, exchange: Exchange) -> np.ndarray:
        """``[candidates]`` those of plans in which RB tables have this exchange, but
        for forced ones."""
        each = self.candidates
        fixed = np.array([force.exchange is not None for force in self.forced])
        pooled = each.cluster == CLUSTERS.index("rb")
        other = each.exchange != EXCHANGES.index(exchange)
        return ~(pooled & other & ~fixed[each.table])


def make_instance(
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    forced: Mapping[str, ForcedPlacement],
    workload: Workload,
    model: CostModel,
    exchanges: Sequence[Exchange],
) -> Instance:
    """The instance of one request.

    Args:
      tables, features, forced: as for ``plan``.
      workload, model: what is planned for, and what prices it.
      exchanges: of RB, to choose among.
    """
    memory = Memory(workload)
    placed = [
        each for t in tables for each in _hot_and_cold(t, forced.get(t.name, FREE))
    ]
    tables, rows, forces = zip(*placed, strict=True)
    uses = table_uses(tables, features, workload)
    numbers: dict[tuple[TableUse, ForcedPlacement], int] = {}
    keys = [
        (use.of_rows(mine.start, mine.stop), force)
        for use, mine, force in zip(uses, rows, forces, strict=True)
    ]
    group = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
    choices = np.array(
        [
            (g, *choice)
            for g, (use, force) in enumerate(numbers)
            for choice in _choices(use, force, workload.devices, model, exchanges)
        ]
    )
    candidates = weigh([use for use, _ in numbers], choices, workload, model, memory)
    objective = Objective(candidates.storages, workload, model, memory)
    return Instance(
        *(workload, model, memory, objective, tables, rows, group),
        counts=np.bincount(group),
        forced=[force for _, force in numbers],
        candidates=candidates,
    )


def _hot_and_cold(
    table: TableSpec, force: ForcedPlacement
) -> Iterator[tuple[TableSpec, range, ForcedPlacement]]:
    """What is to be placed of a table, and what is forced of that."""
    hot_rows = force.hot_rows or 0
    if hot_rows:
        yield table, range(hot_rows), ForcedPlacement("dp")
    yield table, range(hot_rows, table.rows), force


Choice = tuple[int, int, int, int]
"""Cluster and exchange, as numbers, row shards and column shards."""


def _choices(
    use: TableUse,
    force: ForcedPlacement,
    devices: int,
    model: CostModel,
    exchanges: Sequence[Exchange],
) -> list[Choice]:
    """The candidates worth a try: halvings of rows and columns, and even shares of the
    fleet, that make at most one shard for each device, and shards whose slots can be
    numbered, if there are any."""
    clusters = model.clusters
    if force.cluster is not None:
        clusters = (force.cluster,)
    elif force.sharded:
        clusters = tuple(cluster for cluster in clusters if cluster != "dp")
    elif devices == 1 and "dp" in clusters:
        clusters = ("dp",)
    found: list[Choice] = []
    for cluster in clusters:
        number = CLUSTERS.index(cluster)
        if cluster == "dp":
            found.append((number, EXCHANGES.index("flat"), 1, 1))
            continue
        # In UB a hierarchical exchange saves nothing: no partial sums are added up.
        ways = exchanges if cluster == "rb" else ("flat",)
        ways = ways if force.exchange is None else (force.exchange,)
        for way in map(EXCHANGES.index, ways):
            splits = _splits(use, force, devices)
            found += [(number, way, rows, columns) for rows, columns in splits]
    numbered = [each for each in found if -(-use.rows // each[2]) <= MAX_SLOTS]
    return numbered or found


def _splits(
    use: TableUse, force: ForcedPlacement, devices: int
) -> Iterator[tuple[int, int]]:
    """Row shards and column shards."""
    free = force.row_shards is None and force.devices is None
    for columns in _column_splits(use, force):
        for rows in _row_splits(use, force, devices, columns):
            if not free or rows * columns <= devices:
                yield rows, columns


def _column_splits(use: TableUse, force: ForcedPlacement) -> list[int]:
    if force.column_shards is not None:
        return [force.column_shards]
    halvings = [2**k for k in range(use.dim.bit_length())]
    splits = [m for m in halvings if use.dim % m == 0 and use.dim // m >= MIN_WIDTH]
    return splits or [1]


def _row_splits(
    use: TableUse, force: ForcedPlacement, devices: int, column_shards: int
) -> list[int]:
    if force.row_shards is not None:
        return [force.row_shards]
    if force.devices is not None:
        return [max(1, len(force.devices) // column_shards)]
    halvings = {2**k for k in range(devices.bit_length())}
    shares = {n for n in range(1, devices + 1) if devices % n == 0}
    return sorted(n for n in halvings | shares if n <= min(devices, use.rows))


def forced_problems(
    table: TableSpec, force: ForcedPlacement, devices: int
) -> list[str]:
    """What is impossible about a forced placement."""
    columns = 1 if force.column_shards is None else force.column_shards
    rows = force.row_shards
    if force.cluster == "dp":
        rows, owners = 1 if rows is None else rows, force.devices or ()
    else:
        if rows is None:
            rows = max(1, len(force.devices or ()) // max(1, columns))
        owners = (0,) * (rows * columns) if force.devices is None else force.devices
    cluster, exchange = force.cluster or "rb", force.exchange or "flat"
    hot_rows = 0 if force.hot_rows is None else force.hot_rows
    placement = Placement(
        table, cluster, rows, columns, owners, exchange, hot_rows=hot_rows
    )
    return placement.problems(devices)
