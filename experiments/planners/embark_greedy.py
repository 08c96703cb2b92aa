"""EMBark's greedy planner, from its description and its released code's behaviour
(NVIDIA-Merlin/HugeCTR, ``benchmarks/embedding_collection/hugectr/sharding``).

A user sets by hand how many tables are in cluster DP (the smallest) and in UB (of the
rest, those of lowest hotness), whose rows go over all devices. The others are RB: every
shard, dearest first, goes to the cheapest device that has room and no shard of its
table; then the dearest table is split in two, by rows or by columns, and all are placed
anew. Of twenty rounds, and of all tables over all devices, it takes what is cheapest by
EMBark's formula.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from baselines import Features, Placements, Tables, rows_over
from embark_formula import EmbarkModel

from embark_jax.planner import Workload
from embark_jax.planner.cost.memory import Memory
from embark_jax.planner.cost.shapes import Shapes
from embark_jax.planner.request.workload import TableUse, table_uses
from embark_jax.plans.storage import Placement

ROUNDS = 20
TABLE_GIB = (60, 20)
"""Of a device's memory, for tables and their optimizer state. The first is the released
default; it leaves too little for storages that are as large on all devices as on the
fullest, which a user would see and lower it."""
MIN_WIDTH = 32
"""Columns of a shard are not halved at this width or below."""
SHARES = (0.0, 0.25, 0.5, 0.75)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What EMBark's user sets by hand.

    Attributes:
      dp_tables, ub_tables: how many are in these clusters.
      hierarchical: places shards on nodes, each on all devices of its node by rows.
      table_gib: of a device's memory.
    """

    dp_tables: int
    ub_tables: int
    hierarchical: bool
    table_gib: int = TABLE_GIB[0]


def settings(count: int, workload: Workload) -> Iterator[Settings]:
    """Those worth a try for ``count`` tables."""
    kinds = (False, True) if workload.fleet.nodes > 1 else (False,)
    for dp, ub, kind in itertools.product(SHARES, SHARES, kinds):
        if dp + ub <= 1:
            yield Settings(round(dp * count), round(ub * count), kind)


def plan(
    tables: Tables, features: Features, workload: Workload, chosen: Settings
) -> Placements:
    """The placements.

    Raises:
      ValueError: if the tables do not fit.
    """
    uses = table_uses(tables, features, workload)
    order = sorted(range(len(uses)), key=lambda i: (_size(uses[i]), -uses[i].hotness))
    dp, rest = order[: chosen.dp_tables], order[chosen.dp_tables :]
    rest.sort(key=lambda i: (uses[i].hotness, _size(uses[i])))
    ub, rb = rest[: chosen.ub_tables], sorted(rest[chosen.ub_tables :])
    placed = {i: Placement(tables[i], "dp") for i in dp}
    for i in ub:
        everywhere = rows_over(tables[i], range(workload.devices))
        placed[i] = dataclasses.replace(everywhere, cluster="ub")
    memory = Memory(workload)
    table_bytes = [use.rows * memory.row_bytes(use.dim) for use in uses]
    room_bytes = chosen.table_gib * 2**30 - sum(table_bytes[i] for i in dp)
    room_bytes -= sum(table_bytes[i] for i in ub) / workload.devices
    fleet, model = workload.fleet, EmbarkModel(workload)
    buckets, per_bucket = fleet.devices, 1
    if chosen.hierarchical:
        buckets, per_bucket = fleet.nodes, fleet.gpus_per_node
    search = _Search(
        [uses[i] for i in rb],
        [table_bytes[i] for i in rb],
        buckets,
        room_bytes * per_bucket,
        model,
    )
    splits, owners = search.run()
    for i, (row_shards, column_shards), where in zip(rb, splits, owners, strict=True):
        # A shard of a node is one row shard on each of its devices.
        grid = np.array(where).reshape(row_shards, 1, column_shards) * per_bucket
        grid = (grid + np.arange(per_bucket)[:, None]).reshape(-1, column_shards)
        grid = grid[: tables[i].rows]
        placed[i] = Placement(
            tables[i],
            "rb",
            len(grid),
            column_shards,
            tuple(map(int, grid.ravel())),
        )
    return tuple(placed[i] for i in range(len(tables)))


def _size(use: TableUse) -> int:
    return use.rows * use.dim


class _Search:
    """For the RB tables; a bucket is a device or a node."""

    def __init__(
        self,
        uses: Sequence[TableUse],
        table_bytes: Sequence[float],
        buckets: int,
        room_bytes: float,
        model: EmbarkModel,
    ):
        self.uses, self.table_bytes = uses, table_bytes
        self.buckets, self.room_bytes, self.model = buckets, room_bytes, model
        if sum(table_bytes) / buckets > room_bytes:
            raise ValueError("does not fit even with all tables over all devices")

    def run(self) -> tuple[list[tuple[int, int]], list[list[int]]]:
        """``(row shards, column shards)`` and owners of every table's shards."""
        everywhere = [(self.buckets, 1)] * len(self.uses)
        owners = [list(range(self.buckets))] * len(self.uses)
        best = (sum(map(self._shard_ms, self.uses, everywhere)), everywhere, owners)
        splits = [(1, 1)] * len(self.uses)
        for _ in range(ROUNDS if self.uses else 0):
            cost_ms, owners, stuck = self._place(splits)
            if stuck is None:
                best = min(best, (cost_ms, splits, owners), key=lambda each: each[0])
            halved = self._split(splits, stuck)
            if halved is None:
                break
            splits = halved
        return best[1], best[2]

    def _shard_ms(self, use: TableUse, split: tuple[int, int]) -> float:
        shape = Shapes.one(use, self.model.workload, "rb", *split)
        return float(self.model.owner_ms(shape)[:, 0].sum())

    def _place(
        self, splits: Sequence[tuple[int, int]]
    ) -> tuple[float, list[list[int]], int | None]:
        """Cost, owners, and the first table that found no room."""
        loads = np.zeros(self.buckets)
        room_bytes = np.full(self.buckets, float(self.room_bytes))
        owners: list[list[int]] = [[] for _ in splits]
        shard_ms = list(map(self._shard_ms, self.uses, splits))
        # Shards of one table are equal and follow each other.
        for i in sorted(range(len(splits)), key=lambda i: -shard_ms[i]):
            shards = splits[i][0] * splits[i][1]
            fits = room_bytes >= self.table_bytes[i] / shards
            if fits.sum() < shards:
                return float(loads.max()), owners, i
            order = np.argsort(np.where(fits, loads, np.inf), kind="stable")[:shards]
            owners[i] = order.tolist()
            loads[order] += shard_ms[i]
            room_bytes[order] -= self.table_bytes[i] / shards
        return float(loads.max()), owners, None

    def _split(
        self, splits: list[tuple[int, int]], stuck: int | None
    ) -> list[tuple[int, int]] | None:
        """With ``stuck``, or else the dearest table that can be, halved the cheaper
        way; None if it cannot be."""
        if stuck is None:
            shard_ms = list(map(self._shard_ms, self.uses, splits))
            order = sorted(range(len(splits)), key=lambda i: -shard_ms[i])
        else:
            order = [stuck]
        for i in order:
            row_shards, column_shards = splits[i]
            if 2 * row_shards * column_shards > self.buckets:
                continue
            ways = [(2 * row_shards, column_shards)]
            width = self.uses[i].dim // column_shards
            if width % 2 == 0 and width > MIN_WIDTH:
                ways.append((row_shards, 2 * column_shards))
            tries = [[*splits[:i], way, *splits[i + 1 :]] for way in ways]
            return min(tries, key=self._cost)
        return None

    def _cost(self, splits: list[tuple[int, int]]) -> float:
        cost_ms, _, stuck = self._place(splits)
        return cost_ms if stuck is None else np.inf
