"""Shapes of tables as arrays, and the ids and rows that fall on their row shards.

A *shape* is a cluster, a split and an exchange of a table, before it has owners. All
shapes of one ``Shapes`` share cluster and exchange. Values that differ between the row
shards of a shape are in *flat* arrays, shape by shape: for 2 and 3 row shards ``[a0,
a1, b0, b1, b2]``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from embark_jax.planner.request.workload import TableUse, Workload, table_uses
from embark_jax.plans.clusters import CLUSTERS, DIRECT, ClusterProperties
from embark_jax.plans.options import Cluster, Exchange
from embark_jax.plans.storage import (
    Placement,
    RowRange,
    StorageKind,
    row_ranges,
    storage_kind,
)
from embark_jax.plans.tables import FeatureSpec


@dataclasses.dataclass(frozen=True, eq=False)
class Shapes:
    """Shapes of one cluster and one exchange.

    Attributes:
      workload: circumstances of the plan.
      uses: the use of each table.
      cluster, exchange: those of all shapes.
      table: ``[shapes]`` table of each, a number in ``uses``.
      row_shards, column_shards: ``[shapes]`` number of each.
    """

    workload: Workload
    uses: Sequence[TableUse]
    cluster: Cluster
    exchange: Exchange
    table: np.ndarray
    row_shards: np.ndarray
    column_shards: np.ndarray

    @classmethod
    def one(
        cls,
        use: TableUse,
        workload: Workload,
        cluster: Cluster,
        row_shards: int = 1,
        column_shards: int = 1,
        exchange: Exchange = DIRECT,
    ) -> Shapes:
        """Returns a single shape."""
        arrays = np.array([[0], [row_shards], [column_shards]])
        return cls(workload, [use], cluster, exchange, *arrays)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def of_cluster(self) -> ClusterProperties:
        """Properties of the cluster."""
        return CLUSTERS[self.cluster]

    def _of_use(self, name: str) -> np.ndarray:
        return np.array([getattr(use, name) for use in self.uses])[self.table]

    @functools.cached_property
    def rows(self) -> np.ndarray:
        return self._of_use("rows")

    @functools.cached_property
    def dim(self) -> np.ndarray:
        return self._of_use("dim")

    @functools.cached_property
    def hotness(self) -> np.ndarray:
        return self._of_use("hotness")

    @functools.cached_property
    def bags(self) -> np.ndarray:
        return self._of_use("bags")

    @functools.cached_property
    def weighted(self) -> np.ndarray:
        return self._of_use("weighted")

    @functools.cached_property
    def filled(self) -> np.ndarray:
        return self._of_use("filled")

    @functools.cached_property
    def value_bytes(self) -> np.ndarray:
        return self._of_use("value_bytes")

    @property
    def width(self) -> np.ndarray:
        return self.dim // self.column_shards

    @functools.cached_property
    def storages(self) -> list[StorageKind]:
        """Returns ``[shapes]`` the storage that each would lie in."""
        kinds: dict[tuple[int, int], StorageKind] = {}
        pairs = list(zip(self.table.tolist(), self.column_shards.tolist(), strict=True))
        for table, columns in set(pairs):
            use = self.uses[table]
            kinds[table, columns] = storage_kind(
                cluster=self.cluster,
                dim=use.dim,
                column_shards=columns,
                weighted=use.weighted,
                exchange=self.exchange,
                tier=use.tier,
                evict=use.evict,
                dynamic=use.dynamic,
                rule=use.rule,
                dtype=use.dtype,
            )
        return [kinds[pair] for pair in pairs]

    # Flat arrays, one element for each row shard.

    @functools.cached_property
    def shape(self) -> np.ndarray:
        """Number of the shape of each row shard."""
        return np.repeat(np.arange(len(self)), self.row_shards)

    @functools.cached_property
    def row_shard(self) -> np.ndarray:
        """Number of each row shard in its shape."""
        first = np.cumsum(self.row_shards) - self.row_shards
        return np.arange(self.row_shards.sum()) - first[self.shape]

    @functools.cached_property
    def shard_rows(self) -> np.ndarray:
        """Rows of each row shard: they go round robin."""
        row_shards = self.row_shards[self.shape]
        return (self.rows[self.shape] - self.row_shard + row_shards - 1) // row_shards

    @functools.cached_property
    def shard_slots(self) -> np.ndarray:
        """Slots of each row shard: one a row, or its share of a cached table's
        slots."""
        slots = np.array([use.slots or use.rows for use in self.uses])[self.table]
        return np.minimum(self.shard_rows, -(-slots // self.row_shards)[self.shape])

    @functools.cached_property
    def shares(self) -> np.ndarray:
        """Share of its table's ids that fall on each row shard."""
        pairs = list(zip(self.table.tolist(), self.row_shards.tolist(), strict=True))
        shares: dict[tuple[int, int], np.ndarray] = {}
        for table, shards in dict.fromkeys(pairs):  # table by table: skews keep some
            use = self.uses[table]
            shares[table, shards] = use.skew.row_shard_shares(use.rows, shards)
        return np.concatenate([np.zeros(0), *(shares[pair] for pair in pairs)])

    @functools.cached_property
    def sent_ids(self) -> tuple[np.ndarray, np.ndarray]:
        """``(certain, expected)`` ids that a device sends to each row shard: the most
        that are possible, where slack would go beyond them, or else the expectation."""
        possible = self.workload.device_batch * self.hotness[self.shape].astype(float)
        if self.of_cluster.unique_ids:
            possible = np.minimum(possible, self.shard_rows)
        likely = self.likely_ids
        certain = likely * self.workload.capacity_slack >= possible
        return np.where(certain, possible, 0.0), np.where(certain, 0.0, likely)

    @functools.cached_property
    def likely_ids(self) -> np.ndarray:
        """Ids that a device is expected to send to each row shard: in RB every id, in
        UB every unique id."""
        likely = (self.workload.device_batch * self._ids)[self.shape] * self.shares
        if self.of_cluster.unique_ids:
            unique = self.expected_unique(self.workload.device_batch) / self.row_shards
            likely = np.minimum(likely, unique[self.shape])
        return likely

    @functools.cached_property
    def batch_ids(self) -> np.ndarray:
        """Ids of the whole batch that fall on each row shard."""
        return (self.workload.batch_size * self._ids)[self.shape] * self.shares

    @functools.cached_property
    def batch_unique(self) -> np.ndarray:
        """Rows of each row shard that the whole batch touches: in proportion to its
        rows, since round robin spreads touched rows evenly except the hottest few."""
        unique = self.expected_unique(self.workload.batch_size) / self.rows
        return unique[self.shape] * self.shard_rows

    @property
    def _ids(self) -> np.ndarray:
        """``[shapes]`` ids a sample, without padding."""
        return self.hotness * self.filled

    def expected_unique(self, samples: int) -> np.ndarray:
        """Returns ``[shapes]`` expected number of unique rows in these samples."""
        of_table = np.zeros(len(self.uses))
        for i in np.unique(self.table):
            of_table[i] = self.uses[i].unique_rows(samples)
        return of_table[self.table]

    @functools.cached_property
    def missed_rows(self) -> np.ndarray:
        """Rows of each row shard that come into slots for a batch, in proportion to its
        rows."""
        of_table = np.zeros(len(self.uses))
        for i in np.unique(self.table):
            of_table[i] = self.uses[i].missed_rows(self.workload.batch_size)
        return (of_table[self.table] / self.rows)[self.shape] * self.shard_rows

    @property
    def cached(self) -> np.ndarray:
        """``[shapes]`` whether each has fewer slots than rows."""
        return self._of_use("tier") != "device"

    @property
    def dynamic(self) -> np.ndarray:
        """``[shapes]`` whether each has rows by key."""
        return self._of_use("dynamic") != ""

    @property
    def forgets(self) -> np.ndarray:
        """``[shapes]`` whether each forgets rows that leave its slots."""
        return self._of_use("forgets")

    @property
    def on_disk(self) -> np.ndarray:
        """``[shapes]`` whether all rows of each have room on a disk."""
        return self._of_use("tier") == "disk"


def uses_of(
    ranges: Sequence[RowRange], features: Sequence[FeatureSpec], workload: Workload
) -> list[TableUse]:
    """Returns the use of each row range by ``features``."""
    uses = table_uses([rows.table for rows in ranges], features, workload)
    of_ranges = []
    for use, rows in zip(uses, ranges, strict=True):
        of_range = use.of_rows(rows.begin, rows.end)
        if workload.sorted_batch is not None:
            share = of_range.filled / use.filled
            share = workload.sorted_batch.ids_share(share, rows.replicated)
            of_range = dataclasses.replace(of_range, filled=share * use.filled)
        of_ranges.append(of_range)
    return of_ranges


def ranges_of(placements: Sequence[Placement], workload: Workload) -> list[RowRange]:
    """Returns the row ranges that a batch reads: all, or those of hot rows.

    Raises:
      ValueError: if all ids of a batch are of hot rows, and a table has none.
    """
    ranges = row_ranges(placements)
    if workload.sorted_batch is None or not workload.sorted_batch.all_hot:
        return ranges
    without = [p.table.name for p in placements if not p.replicated_rows]
    if without:
        raise ValueError(
            f"{len(without)} of {len(placements)} tables have no hot rows, such as "
            f"{without[0]!r}, so no batch is of hot rows alone; give them hot rows, "
            "as embedding.hot_budget does"
        )
    return [rows for rows in ranges if rows.replicated]


def shapes_of(
    ranges: Sequence[RowRange], features: Sequence[FeatureSpec], workload: Workload
) -> list[Shapes]:
    """Returns the shape of each row range, on its own."""
    uses = uses_of(ranges, features, workload)
    return [
        Shapes.one(
            use,
            workload,
            rows.cluster,
            rows.row_shards,
            rows.column_shards,
            rows.exchange,
        )
        for use, rows in zip(uses, ranges, strict=True)
    ]
