"""Candidates as arrays, and the ids and rows that fall on their row shards.

A *candidate* is a cluster, a split and an exchange of a table, before its shards have
owners. Those of one ``Candidates`` share the cluster; of the exchange nothing here
depends. Values that differ
between the row shards of a candidate are in *flat* arrays, candidate by candidate: for
2 and 3 row shards ``[a0, a1, b0, b1, b2]``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from embark_jax.planner.request.workload import TableUse, Workload, table_uses
from embark_jax.plans.capacities import capacity_of
from embark_jax.plans.clusters import CLUSTERS, ClusterProperties
from embark_jax.plans.options import Cluster
from embark_jax.plans.storage import Placement, RowRange, row_ranges
from embark_jax.plans.tables import FeatureSpec
from embark_jax.plans.traffic import summed_whole
from embark_jax.plans.wire import VALUE_BYTES


class Candidates:
    """Candidates of one cluster.

    Attributes:
      workload: circumstances of the plan.
      uses: the use of each table.
      cluster: that of all candidates.
      table: ``[candidates]`` table of each, a number in ``uses``.
      row_shards, column_shards, width: ``[candidates]`` of each.
      rows, hotness, bags, weighted, filled: ``[candidates]`` as in ``TableUse``.
      dim, value_bytes: ``[candidates]`` columns, and bytes of a parameter.
      cached, on_disk, dynamic, forgets: ``[candidates]`` whether each has fewer slots
        than rows; has room for all rows on a disk; has rows by key; and forgets rows
        that leave its slots.
      room: updated rows of all together that there is room for; None for those that
        are expected.
      candidate, row_shard: flat, the candidate of each row shard, and its number there.
    """

    def __init__(
        self,
        workload: Workload,
        uses: Sequence[TableUse],
        cluster: Cluster,
        table: np.ndarray,
        row_shards: np.ndarray,
        column_shards: np.ndarray,
        room: int | None = None,
    ):
        self.workload, self.uses, self.room = workload, uses, room
        self.cluster: Cluster = cluster
        self.table = table
        self.row_shards, self.column_shards = row_shards, column_shards

        def of_tables(values: list) -> np.ndarray:
            return np.array(values)[table]

        specs = [use.table for use in uses]
        self.rows = of_tables([use.rows for use in uses])
        self.hotness = of_tables([use.hotness for use in uses])
        self.bags = of_tables([use.bags for use in uses])
        self.weighted = of_tables([use.weighted for use in uses])
        self.filled = of_tables([use.filled for use in uses])
        self.dim = of_tables([spec.dim for spec in specs])
        self.value_bytes = of_tables([VALUE_BYTES[spec.dtype] for spec in specs])
        self.cached = of_tables([spec.cached for spec in specs])
        self.on_disk = of_tables([spec.tier == "disk" for spec in specs])
        self.dynamic = of_tables([spec.is_dynamic for spec in specs])
        self.forgets = of_tables([spec.discard for spec in specs])
        self.width = self.dim // column_shards
        self.candidate = np.repeat(np.arange(len(table)), row_shards)
        first = np.cumsum(row_shards) - row_shards
        self.row_shard = np.arange(row_shards.sum()) - first[self.candidate]

    @classmethod
    def of_ranges(
        cls,
        ranges: Sequence[RowRange],
        uses: Sequence[TableUse],
        workload: Workload,
        room: int | None = None,
    ) -> Candidates:
        """Returns the candidates of row ranges of one cluster, and of
        their uses, one for each."""
        return cls(
            workload,
            uses,
            ranges[0].cluster,
            np.arange(len(ranges)),
            np.array([rows.row_shards for rows in ranges]),
            np.array([rows.column_shards for rows in ranges]),
            room,
        )

    def __len__(self) -> int:
        return len(self.table)

    @property
    def of_cluster(self) -> ClusterProperties:
        """Properties of the cluster."""
        return CLUSTERS[self.cluster]

    # Flat arrays, one element for each row shard.

    @functools.cached_property
    def shard_rows(self) -> np.ndarray:
        """Rows of each row shard: they go round robin."""
        row_shards = self.row_shards[self.candidate]
        rows = self.rows[self.candidate]
        return (rows - self.row_shard + row_shards - 1) // row_shards

    @functools.cached_property
    def shard_slots(self) -> np.ndarray:
        """Slots of each row shard: one a row, or its share of a cached table's
        slots."""
        slots = [use.table.slots or use.rows for use in self.uses]
        shares = -(-np.array(slots)[self.table] // self.row_shards)
        return np.minimum(self.shard_rows, shares[self.candidate])

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
        possible = self.workload.device_batch * self.hotness[self.candidate].astype(
            float
        )
        if self.of_cluster.unique_ids:
            possible = np.minimum(possible, self.shard_rows)
        likely = self.likely_ids
        certain = likely * self.workload.capacity_slack >= possible
        return np.where(certain, possible, 0.0), np.where(certain, 0.0, likely)

    @functools.cached_property
    def likely_ids(self) -> np.ndarray:
        """Ids that a device is expected to send to each row shard: in RB every id, in
        UB every unique id."""
        likely = self._ids_of(self.workload.device_batch) * self.shares
        if self.of_cluster.unique_ids:
            unique = self.expected_unique(self.workload.device_batch) / self.row_shards
            likely = np.minimum(likely, unique[self.candidate])
        return likely

    @functools.cached_property
    def batch_ids(self) -> np.ndarray:
        """Ids of the whole batch that fall on each row shard."""
        return self._ids_of(self.workload.batch_size) * self.shares

    @functools.cached_property
    def batch_unique(self) -> np.ndarray:
        """Rows of each row shard that the whole batch touches: in proportion to its
        rows, since round robin spreads touched rows evenly except the hottest few."""
        unique = self.expected_unique(self.workload.batch_size) / self.rows
        return unique[self.candidate] * self.shard_rows

    @functools.cached_property
    def updated_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """``(certain, expected)`` rows of each row shard that a batch updates, like
        ``sent_ids``. Of a replicated table that devices sum whole it is all."""
        batch_ids = np.rint(self.workload.batch_size * self.hotness)[self.candidate]
        possible = np.minimum(self.shard_rows, batch_ids)
        slack = self.workload.capacity_slack
        certain = capacity_of(0.0, self.batch_unique, slack) >= possible
        certain |= self.cached[self.candidate]  # there is room for all that may come
        if self.of_cluster.replicated and self.workload.devices > 1:
            certain |= summed_whole(self.shard_rows, batch_ids)
        return (
            np.where(certain, possible, 0.0),
            np.where(certain, 0.0, self.batch_unique),
        )

    @functools.cached_property
    def room_for_rows(self) -> np.ndarray:
        """Room for updated rows that each row shard adds to its owner's, at least."""
        certain, expected = self.updated_rows
        room = certain + self.workload.capacity_slack * expected
        if self.room is None:
            return room
        return room * (self.room / max(1.0, room.sum()))

    @functools.cached_property
    def missed_rows(self) -> np.ndarray:
        """Rows of each row shard that come into slots for a batch, in proportion to its
        rows."""
        missed = self._of_uses("missed_rows", self.workload.batch_size) / self.rows
        return missed[self.candidate] * self.shard_rows

    def expected_unique(self, samples: int) -> np.ndarray:
        """Returns ``[candidates]`` expected number of unique rows in these samples."""
        return self._of_uses("unique_rows", samples)

    def _ids_of(self, samples: int) -> np.ndarray:
        """Returns the ids of these samples, without padding, for each row shard all of
        its table's."""
        return (samples * (self.hotness * self.filled))[self.candidate]

    def _of_uses(self, method: str, argument: Any) -> np.ndarray:
        """Returns ``[candidates]`` what a method of their tables' uses returns."""
        values = np.zeros(len(self.uses))
        for i in np.unique(self.table):
            values[i] = getattr(self.uses[i], method)(argument)
        return values[self.table]


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
