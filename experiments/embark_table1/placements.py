"""Placements of EMBark's system, as its released code makes them.

The code is HugeCTR's ``benchmarks/embedding_collection/hugectr/sharding``: the baseline
``table_row_wise``, the greedy search ``hier_auto``, and clusters by numbers of tables.
It counts ids and columns alone: of a table's skew it knows nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from embark_jax.planner.request.workload import TableUse, Workload, table_uses
from embark_jax.plans.options import ClusterName
from embark_jax.plans.placement import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from experiments.embark_table1.step import FLOAT_BYTES

TABLE_BYTES = 60e9
"""Most bytes of tables on a GPU: ``memory_cap_for_embedding``."""
MEMORY_WORK = 4
"""Weight of a value that is looked up: ``mem_comm_work_ratio``."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How the greedy search was started.

    Attributes:
      communication: weight of a value that is sent: ``mem_comm_bw_ratio``.
      node_communication: factor of it where shards are placed on nodes.
      on_nodes: whether shards are placed on nodes, over whose GPUs their rows are
        spread; None does so where there are several.
      by_columns: whether shards are split by columns, too.
    """

    communication: float = 60
    node_communication: float = 1.5
    on_nodes: bool | None = None
    by_columns: bool = True


BENCHMARK = Settings()
"""Of ``benchmark.sh``."""
SPLIT_COMMUNICATION = 80
"""Weight of a value that is sent, in the choice of the shard to split."""
SPLITS = 20
"""Plans that the search tries: ``max_search_iter``."""
NARROWEST = 32
"""Shards of this width are split by rows only."""


def table_row_wise(tables: Sequence[TableSpec], workload: Workload) -> list[Placement]:
    """The baseline: tables go to nodes round robin, each with its rows over all GPUs of
    one node, all in RB. A table too large for one node takes all GPUs."""
    fleet = workload.fleet
    gpus = fleet.gpus_per_node
    placements = []
    for i, table in enumerate(tables):
        owners = range(fleet.devices)
        if table_bytes(table, workload) <= TABLE_BYTES * gpus:
            first = i % fleet.nodes * gpus
            owners = range(first, first + gpus)
        placements.append(Placement(table, "rb", len(owners), devices=tuple(owners)))
    return placements


def table_bytes(table: TableSpec, workload: Workload) -> float:
    """Bytes of a table with the optimizer's state."""
    return table.rows * table.dim * FLOAT_BYTES * (1 + workload.state_values[0])


def thresholds(
    uses: Sequence[TableUse], replicated: int, unique: int
) -> list[ClusterName]:
    """The cluster of each table by EMBark's rule: the smallest tables are in DP, of the
    others those with the fewest ids a bag in UB, the rest in RB.

    Args:
      uses: the tables.
      replicated, unique: numbers of tables in DP and in UB.
    """
    clusters: list[ClusterName] = ["rb"] * len(uses)
    by_size = sorted(range(len(uses)), key=lambda i: dp_order(uses[i]))
    for i in by_size[:replicated]:
        clusters[i] = "dp"
    by_hotness = sorted(by_size[replicated:], key=lambda i: ub_order(uses[i]))
    for i in by_hotness[:unique]:
        clusters[i] = "ub"
    return clusters


def dp_order(use: TableUse) -> tuple[float, float]:
    return use.rows * use.table.dim, -use.hotness


def ub_order(use: TableUse) -> tuple[float, float]:
    return use.hotness, use.rows * use.table.dim


def embark(
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    workload: Workload,
    clusters: Sequence[ClusterName],
    settings: Settings = BENCHMARK,
) -> list[Placement]:
    """EMBark's placements: DP tables on all devices, the rows of UB tables over all
    devices, RB tables where the greedy search puts them.

    With several nodes an RB shard belongs to a whole node, over whose GPUs its rows are
    spread.

    Args:
      tables, features: the model.
      workload: batch, optimizer and fleet.
      clusters: the cluster of each table.
      settings: of the search.

    Raises:
      ValueError: if the tables do not fit.
    """
    devices = workload.fleet.devices
    placements = []
    room_bytes = TABLE_BYTES
    for table, cluster in zip(tables, clusters, strict=True):
        if cluster == "dp":
            placements.append(Placement(table, "dp"))
            room_bytes -= table_bytes(table, workload)
        else:
            spread = Placement(table, "ub", devices, devices=tuple(range(devices)))
            placements.append(spread)
            if cluster == "ub":
                room_bytes -= table_bytes(table, workload) / devices
    reduced = [i for i, cluster in enumerate(clusters) if cluster == "rb"]
    if reduced:
        uses = table_uses(tables, features, workload)
        search = Search([uses[i] for i in reduced], workload, room_bytes, settings)
        of_reduced = search.placements([tables[i] for i in reduced])
        for i, placement in zip(reduced, of_reduced, strict=True):
            placements[i] = placement
    return placements


@dataclasses.dataclass(frozen=True, eq=False)
class Spread:
    """A greedy plan: how often each table is split, and who holds its shards.

    Attributes:
      rows, columns: ``[tables]`` row and column shards.
      bins: the bins of each table's shards, empty if they found no room.
      cost: that of the fullest bin.
      overfull: the table that found no room, if one did not.
    """

    rows: np.ndarray
    columns: np.ndarray
    bins: list[np.ndarray]
    cost: float
    overfull: int | None = None


class Search:
    """EMBark's greedy search over RB tables.

    Again and again it puts shards, the dearest first, on the cheapest bins, and splits
    the dearest shard in two. *Bins* are nodes, or GPUs where there is one node. A bin
    holds at most one shard of a table.
    """

    def __init__(
        self,
        uses: Sequence[TableUse],
        workload: Workload,
        room_bytes: float,
        settings: Settings,
    ):
        """
        Args:
          uses: the RB tables.
          workload: optimizer and fleet.
          room_bytes: bytes of a GPU that they may take.
          settings: of the search.
        """
        fleet, on_nodes = workload.fleet, settings.on_nodes
        on_nodes = fleet.nodes > 1 if on_nodes is None else on_nodes
        self.settings = settings
        self.gpus = fleet.gpus_per_node if on_nodes else 1
        self.bins = fleet.devices // self.gpus
        self.room_bytes = room_bytes * self.gpus
        self.dims = np.array([use.table.dim for use in uses])
        self.hotness = np.array([use.hotness for use in uses], float)
        values = np.array([use.rows for use in uses]) * self.dims
        self.table_bytes = values * FLOAT_BYTES * (1 + workload.state_values[0])

    def placements(self, tables: Sequence[TableSpec]) -> list[Placement]:
        """Returns the placements of these tables in the best plan.

        Raises:
          ValueError: if the tables fit in no plan.
        """
        plan = self.best()
        placements = []
        for i, table in enumerate(tables):
            # MLPerf's code names the owners of a table in order.
            by_columns = self.settings.by_columns
            owners = plan.bins[i] if by_columns else np.sort(plan.bins[i])
            owners = owners.reshape(plan.rows[i], plan.columns[i])
            # Row r goes to GPU r // rows % gpus of its shard's node.
            devices = owners[None] * self.gpus + np.arange(self.gpus)[:, None, None]
            placements.append(
                Placement(
                    table,
                    "rb",
                    int(plan.rows[i]) * self.gpus,
                    int(plan.columns[i]),
                    tuple(map(int, devices.reshape(-1))),
                )
            )
        return placements

    def best(self) -> Spread:
        """Returns the plan whose fullest bin costs least."""
        ones = np.ones_like(self.dims)
        best = self.spread(self.bins * ones, ones)
        if best.overfull is not None:
            raise ValueError(f"tables need more than {TABLE_BYTES / 1e9:g} GB a GPU")
        plan = self.spread(ones, ones)
        for _ in range(SPLITS):
            if plan.overfull is None and plan.cost < best.cost:
                best = plan
            table = self._split(plan)
            if table is None:
                break
            plan = min(self._halved(plan, table), key=lambda halved: halved.cost)
        return best

    def spread(self, rows: np.ndarray, columns: np.ndarray) -> Spread:
        """Puts shards, the dearest first, on the cheapest bins that have room."""
        widths = self.dims / columns
        lookups = MEMORY_WORK * self.hotness * widths / rows
        sums = self.settings.communication * widths
        node = 1.0 if self.gpus == 1 else self.settings.node_communication
        bin_costs = lookups + node * sums
        shards = rows * columns
        shard_bytes = self.table_bytes / shards
        costs, used_bytes = np.zeros(self.bins), np.zeros(self.bins)
        bins = [np.zeros(0, int)] * len(rows)
        for table in np.argsort(-(lookups + sums), kind="stable"):
            fits = used_bytes + shard_bytes[table] <= self.room_bytes
            cheapest = np.argsort(costs, kind="stable")
            owners = cheapest[fits[cheapest]][: shards[table]]
            if len(owners) < shards[table]:
                return Spread(rows, columns, bins, np.inf, int(table))
            bins[table] = owners
            costs[owners] += bin_costs[table]
            used_bytes[owners] += shard_bytes[table]
        return Spread(rows, columns, bins, float(costs.max()))

    def _split(self, plan: Spread) -> int | None:
        """The table to split: the one without room, else that with the dearest shards;
        None if it cannot be split further."""
        fits = 2 * plan.rows * plan.columns <= self.bins
        if plan.overfull is not None:
            return plan.overfull if fits[plan.overfull] else None
        widths = self.dims / plan.columns
        dearest = widths * (self.hotness / plan.rows + SPLIT_COMMUNICATION)
        return int(np.argmax(np.where(fits, dearest, -1))) if fits.any() else None

    def _halved(self, plan: Spread, table: int) -> list[Spread]:
        """Plans with this table's shards split by rows and, if they can be, columns."""
        once = np.ones_like(self.dims)
        once[table] = 2
        halved = [self.spread(plan.rows * once, plan.columns)]
        width = self.dims[table] // plan.columns[table]
        if self.settings.by_columns and width > NARROWEST and width % 2 == 0:
            halved.append(self.spread(plan.rows, plan.columns * once))
        return halved
