"""Storages: the arrays in which all shards of a plan lie.

All shards of one cluster and one width lie in one *storage*, an array of ``[devices ×
slots_per_device, width]`` in which device d's block holds its shards one after the
other. Tables that need other exchanges lie apart: those that are split by columns,
whose ids have weights, or for which the plan says so; and so do those whose rows
another rule updates, or have another number format. So a plan of any shape becomes a
few uniformly sharded arrays, with one gather and one update a device each; this also
fuses tables. A storage is as large on every device as on its fullest: this padding is
the price of imbalance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from embark_jax.plans.clusters import (
    CLUSTERS,
    DIRECT,
    EXCHANGES,
    FOR_SEQUENCES,
    REPLICATED,
    SHARDED,
)
from embark_jax.plans.kind import StorageKind, storage_kind
from embark_jax.plans.options import Cluster, Exchange
from embark_jax.plans.tables import FeatureSpec, TableSpec


@dataclasses.dataclass(frozen=True)
class RowRange:
    """Rows ``[begin, end)`` of a table, which lie in one storage.

    Rows go round robin: row ``begin + r`` of the table is row ``r // row_shards`` of
    row shard ``r % row_shards``.

    Attributes:
      table: the table.
      begin, end: bounds of its rows.
      cluster, row_shards, column_shards, devices, exchange: as in ``Placement``.
    """

    table: TableSpec
    begin: int
    end: int
    cluster: Cluster
    row_shards: int = 1
    column_shards: int = 1
    devices: tuple[int, ...] = ()
    exchange: Exchange = DIRECT

    @property
    def replicated(self) -> bool:
        """Whether all devices hold them."""
        return CLUSTERS[self.cluster].replicated

    @property
    def rows(self) -> int:
        return self.end - self.begin

    @property
    def width(self) -> int:
        return self.table.dim // self.column_shards

    def shard_rows(self, row_shard: int) -> int:
        """Returns the rows of the table that row shard ``row_shard`` holds."""
        return len(range(row_shard, self.rows, self.row_shards))

    def shard_slots(self, row_shard: int) -> int:
        """Returns the slots that row shard ``row_shard`` adds to its owner's block."""
        rows = self.shard_rows(row_shard)
        if self.replicated or self.table.slots is None:
            return rows
        return min(rows, -(-self.table.slots // self.row_shards))


@dataclasses.dataclass(frozen=True)
class Placement:
    """The places of one table's rows.

    The first ``hot_rows`` are replicated on all devices; the rest, the cold rows, are
    split into shards. A "dp" table has only hot rows; the other extreme is a table
    without hot rows.

    Attributes:
      table: the table.
      cluster: cluster of the cold rows: RB pools at the owner, UB at the requester; or
        DP if there are none, and the whole table is replicated.
      row_shards, column_shards: numbers of shards that rows and columns are split into.
      devices: owner of shard (j, k) at ``j * column_shards + k``; empty in DP.
      exchange: how its ids, rows and gradients travel; the direct one in DP.
      reason: why the planner chose this, for the report.
      hot_rows: number of the table's first rows that are replicated, in RB and UB.
    """

    table: TableSpec
    cluster: Cluster
    row_shards: int = 1
    column_shards: int = 1
    devices: tuple[int, ...] = ()
    exchange: Exchange = DIRECT
    reason: str = ""
    hot_rows: int = 0

    @property
    def width(self) -> int:
        return self.table.dim // self.column_shards

    @property
    def row_ranges(self) -> tuple[RowRange, ...]:
        """Row ranges of the table: hot rows, if there are any, then cold rows."""
        cold = RowRange(
            table=self.table,
            begin=self.hot_rows,
            end=self.table.rows,
            cluster=self.cluster,
            row_shards=self.row_shards,
            column_shards=self.column_shards,
            devices=self.devices,
            exchange=self.exchange,
        )
        if not self.hot_rows:
            return (cold,)
        return RowRange(self.table, 0, self.hot_rows, REPLICATED), cold

    @property
    def replicated(self) -> bool:
        """Whether all devices hold all rows."""
        return CLUSTERS[self.cluster].replicated

    @property
    def replicated_rows(self) -> int:
        """Number of rows that are on all devices."""
        return self.table.rows if self.replicated else self.hot_rows

    def problems(self, devices: int) -> list[str]:
        """Lists the problems of this placement on this number of devices."""
        name = f"table {self.table.name!r}"
        problems = []
        if self.cluster not in CLUSTERS:
            return [
                f"{name}: cluster is {self.cluster!r}, must be one of "
                f"{', '.join(CLUSTERS)}"
            ]
        for key in ("row_shards", "column_shards"):
            if getattr(self, key) < 1:
                return [f"{name}: {key} is {getattr(self, key)}, must be >= 1"]
        if self.table.dim % self.column_shards:
            problems.append(
                f"{name}: column_shards is {self.column_shards}, must divide "
                f"dim {self.table.dim}"
            )
        elif self.column_shards > 1 and self.width == 1:
            problems.append(
                f"{name}: column_shards is {self.column_shards}, must leave a width of "
                f"at least 2 of dim {self.table.dim}"
            )
        cold_rows = self.table.rows - self.hot_rows
        if self.hot_rows < 0 or (self.hot_rows and cold_rows < 1):
            problems.append(
                f"{name}: hot_rows is {self.hot_rows}, must be >= 0 and below its "
                f"{self.table.rows} rows; cluster {REPLICATED} replicates them all"
            )
        elif self.row_shards > cold_rows:
            of = "cold rows" if self.hot_rows else "rows"
            problems.append(
                f"{name}: row_shards is {self.row_shards}, must be at most its "
                f"{cold_rows} {of}"
            )
        exchanges = CLUSTERS[self.cluster].exchanges
        if self.exchange not in EXCHANGES:
            problems.append(
                f"{name}: exchange is {self.exchange!r}, must be one of "
                f"{', '.join(EXCHANGES)}"
            )
        elif self.exchange not in exchanges and not self.replicated:
            problems.append(
                f"{name}: exchange is {self.exchange!r}, in cluster {self.cluster} "
                f"must be one of {', '.join(exchanges)}"
            )
        if self.table.is_dynamic and (
            self.replicated
            or self.hot_rows
            or len(set(self.devices)) < len(self.devices)
        ):
            problems.append(
                f"{name}: is dynamic, must be in {' or '.join(SHARDED)}, without "
                "hot_rows, with one shard a device at most"
            )
        if self.replicated:
            replicated = f"{name}: cluster {self.cluster} is replicated"
            if self.exchange not in exchanges:
                problems.append(f"{replicated}, takes no exchange")
            if (self.row_shards, self.column_shards, self.devices) != (1, 1, ()):
                problems.append(f"{replicated}, takes no shards")
            if self.hot_rows:
                problems.append(f"{replicated}, takes no hot_rows")
            if self.table.cached:
                problems.append(
                    f"{replicated}, takes no tier {self.table.tier!r}; choose "
                    f"{' or '.join(SHARDED)}"
                )
            return problems
        shards = self.row_shards * self.column_shards
        if len(self.devices) != shards:
            problems.append(
                f"{name}: devices names {len(self.devices)} owners, must name one for "
                f"each of its {self.row_shards} × {self.column_shards} shards"
            )
        bad = sorted({d for d in self.devices if not 0 <= d < devices})
        if bad:
            problems.append(f"{name}: devices {bad} must lie in 0..{devices - 1}")
        return problems


@dataclasses.dataclass(frozen=True)
class Storage:
    """One array of the plan and where each shard begins in it.

    Attributes:
      kind: properties that its shards share.
      slots_per_device: rows of a device's block, padding included.
      rows_per_device: rows of the block if each row had a slot: shards and first slots
        count in these. In a cached storage it is larger, and the key index says where a
        row of a block lies.
      ranges: row ranges in it, one of a table at most.
      first_slots: for each table ``[row_shards, column_shards]`` the slot, in its
        owner's block, at which a shard begins.
    """

    kind: StorageKind
    slots_per_device: int
    rows_per_device: int
    ranges: tuple[RowRange, ...]
    first_slots: Mapping[str, np.ndarray]

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def cluster(self) -> Cluster:
        return self.kind.cluster

    @property
    def width(self) -> int:
        return self.kind.width

    @property
    def replicated(self) -> bool:
        return self.kind.of_cluster.replicated

    @property
    def cached(self) -> bool:
        return self.kind.tier != "device"

    def owners(self, table: str) -> np.ndarray:
        """Returns ``[row_shards, column_shards]`` owners; zeros if replicated."""
        (rows,) = (
            row_range for row_range in self.ranges if row_range.table.name == table
        )
        shape = (rows.row_shards, rows.column_shards)
        if self.replicated:
            return np.zeros(shape, np.int32)
        return np.array(rows.devices, np.int32).reshape(shape)


def lay_out(
    placements: Sequence[Placement], features: Sequence[FeatureSpec], devices: int
) -> tuple[Storage, ...]:
    """Groups shards into storages and gives each its slots, in the order of tables."""
    weighted = {feature.table for feature in features if feature.weighted}
    groups: dict[StorageKind, list[RowRange]] = {}
    for rows in row_ranges(placements):
        kind = storage_kind(
            rows.table,
            rows.cluster,
            rows.column_shards,
            rows.exchange,
            rows.table.name in weighted,
        )
        groups.setdefault(kind, []).append(rows)
    storages = []
    for kind, members in sorted(groups.items(), key=lambda item: item[0]):
        used = [0] * devices
        slots = [0] * devices
        first_slots = {}
        for rows in members:
            first = np.zeros((rows.row_shards, rows.column_shards), np.int64)
            owners = rows.devices or (0,)
            for index, owner in enumerate(owners):
                j, k = divmod(index, rows.column_shards)
                first[j, k] = used[owner]
                used[owner] += rows.shard_rows(j)
                slots[owner] += rows.shard_slots(j)
            first_slots[rows.table.name] = first
        storages.append(
            Storage(kind, max(slots), max(used), tuple(members), first_slots)
        )
    return tuple(storages)


def row_ranges(placements: Iterable[Placement]) -> list[RowRange]:
    """Returns the row ranges of all tables, table by table."""
    return [rows for placement in placements for rows in placement.row_ranges]


def sequence_problems(
    clusters: Mapping[str, str], features: Sequence[FeatureSpec]
) -> list[str]:
    """Lists tables, by their cluster, that a sequence reads and should not."""
    readers = {feature.table: feature.name for feature in features if feature.sequence}
    return [
        f"table {table!r}: cluster is {cluster!r}, must be "
        f"{' or '.join(FOR_SEQUENCES)}, as feature {readers[table]!r} has pooling "
        "'none': its owners would have nothing to pool"
        for table, cluster in clusters.items()
        if table in readers and cluster in CLUSTERS and cluster not in FOR_SEQUENCES
    ]
