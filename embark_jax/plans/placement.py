"""Placements of tables, and the kinds of storages that their shards lie in.

Tables that need other exchanges lie apart: those that are split by columns, whose ids
have weights, or for which the plan says so; and so do those whose rows another rule
updates, or have another number format.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from embark_jax.plans.clusters import (
    CLUSTERS,
    DIRECT,
    EXCHANGES,
    FOR_SEQUENCES,
    REPLICATED,
    SHARDED,
    ClusterProperties,
    ExchangeProperties,
)
from embark_jax.plans.options import ClusterName, Dtype, Evict, ExchangeName, Tier
from embark_jax.plans.tables import FeatureSpec, TableSpec


class StorageKind(NamedTuple):
    """The properties that the shards of one storage share.

    Attributes:
      cluster: cluster of their tables.
      width: columns of a shard.
      split: whether their tables are split by columns. Each row of such a table lies on
        several devices, and optimizers of whole rows need an additional exchange.
      weighted: whether weights travel with ids: where owners pool.
      exchange: how ids, rows and gradients travel.
      tier, evict: place with room for all rows of their tables, and the rows that leave
        slots first, as in ``TableSpec``.
      table: name of a dynamic table, which has a storage of its own: the table grows
        there, and no row of it moves.
      rule: name of the rule that updates their rows, as in ``TableSpec.optimizer``.
      dtype: number format of their rows.
    """

    cluster: ClusterName
    width: int
    split: bool = False
    weighted: bool = False
    exchange: ExchangeName = DIRECT
    tier: Tier = "device"
    evict: Evict = "lru"
    table: str = ""
    rule: str = ""
    dtype: Dtype = "float32"

    @property
    def of_cluster(self) -> ClusterProperties:
        """Properties of its cluster."""
        return CLUSTERS[self.cluster]

    @property
    def of_exchange(self) -> ExchangeProperties:
        """Properties of its exchange."""
        return EXCHANGES[self.exchange]

    @property
    def name(self) -> str:
        """Name of the storage: "rb_128", "rb_64_split", "ub_128_host",
        "ub_128_host_user", "rb_128_bfloat16", "rb_128_by_adam"."""
        name = f"{self.cluster}_{self.width}"
        name += "_split" * self.split + "_weighted" * self.weighted
        name += f"_{self.exchange}" * (self.exchange != DIRECT)
        name += f"_{self.tier}" * (self.tier != "device")
        name += f"_{self.evict}" * (self.evict != "lru")
        name += f"_{self.table}" * bool(self.table)
        name += f"_{self.dtype}" * (self.dtype != "float32")
        return name + f"_by_{self.rule}" * bool(self.rule)

    @classmethod
    def of(
        cls,
        table: TableSpec,
        cluster: ClusterName,
        column_shards: int = 1,
        exchange: ExchangeName = DIRECT,
        weighted: bool = False,
    ) -> StorageKind:
        """Returns the kind of storage of a table that is laid out so; ``weighted`` says
        whether some of its ids have weights."""
        properties = CLUSTERS[cluster]
        on_device = properties.replicated or table.tier == "device"
        return cls(
            cluster,
            table.dim // column_shards,
            split=column_shards > 1,
            weighted=weighted and properties.pools_at_owner,
            exchange=exchange,
            tier="device" if on_device else table.tier,
            evict="lru" if on_device else table.evict,
            table=table.name if table.is_dynamic else "",
            rule=table.optimizer,
            dtype=table.dtype,
        )


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
    cluster: ClusterName
    row_shards: int = 1
    column_shards: int = 1
    devices: tuple[int, ...] = ()
    exchange: ExchangeName = DIRECT

    @property
    def replicated(self) -> bool:
        """Whether all devices hold them."""
        return CLUSTERS[self.cluster].replicated

    @property
    def rows(self) -> int:
        return self.end - self.begin


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
      hot_rows: number of the table's first rows that are replicated, in RB and UB.
    """

    table: TableSpec
    cluster: ClusterName
    row_shards: int = 1
    column_shards: int = 1
    devices: tuple[int, ...] = ()
    exchange: ExchangeName = DIRECT
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
        if self.cluster not in CLUSTERS:
            return [self._problem("cluster", f"must be one of {', '.join(CLUSTERS)}")]
        for key in ("row_shards", "column_shards"):
            if getattr(self, key) < 1:
                return [self._problem(key, "must be >= 1")]
        table, exchanges = self.table, CLUSTERS[self.cluster].exchanges
        name = f"table {table.name!r}"
        cold_rows = table.rows - self.hot_rows
        of = "cold rows" if self.hot_rows else "rows"
        problems: list[str] = []
        if table.dim % self.column_shards:
            rule = f"must divide dim {table.dim}"
            problems.append(self._problem("column_shards", rule))
        elif self.column_shards > 1 and self.width == 1:
            rule = f"must leave a width of at least 2 of dim {table.dim}"
            problems.append(self._problem("column_shards", rule))
        if self.hot_rows < 0 or (self.hot_rows and cold_rows < 1):
            rule = (
                f"must be >= 0 and below its {table.rows} rows; cluster {REPLICATED} "
                "replicates them all"
            )
            problems.append(self._problem("hot_rows", rule))
        elif self.row_shards > cold_rows:
            rule = f"must be at most its {cold_rows} {of}"
            problems.append(self._problem("row_shards", rule))
        if self.exchange not in EXCHANGES:
            rule = f"must be one of {', '.join(EXCHANGES)}"
            problems.append(self._problem("exchange", rule))
        elif self.exchange not in exchanges and not self.replicated:
            rule = f"in cluster {self.cluster} must be one of {', '.join(exchanges)}"
            problems.append(self._problem("exchange", rule))
        shared = len(set(self.devices)) < len(self.devices)
        if table.is_dynamic and (self.replicated or self.hot_rows or shared):
            problems.append(
                f"{name}: is dynamic, must be in {' or '.join(SHARDED)}, without "
                "hot_rows, with one shard a device at most"
            )
        if self.replicated:
            sharded = (self.row_shards, self.column_shards, self.devices) != (1, 1, ())
            tier = f"tier {table.tier!r}; choose {' or '.join(SHARDED)}"
            refused = {
                "exchange": self.exchange not in exchanges,
                "shards": sharded,
                "hot_rows": self.hot_rows,
                tier: table.cached,
            }
            return problems + [
                f"{name}: cluster {self.cluster} is replicated, takes no {what}"
                for what, given in refused.items()
                if given
            ]
        if len(self.devices) != self.row_shards * self.column_shards:
            problems.append(
                f"{name}: devices names {len(self.devices)} owners, must name one for "
                f"each of its {self.row_shards} × {self.column_shards} shards"
            )
        bad = sorted({d for d in self.devices if not 0 <= d < devices})
        if bad:
            problems.append(f"{name}: devices {bad} must lie in 0..{devices - 1}")
        return problems

    def _problem(self, key: str, rule: str) -> str:
        return f"table {self.table.name!r}: {key} is {getattr(self, key)!r}, {rule}"


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


def equal_placements(
    placements: Sequence[Placement], features: Sequence[FeatureSpec]
) -> list[list[Placement]]:
    """Groups placements of tables that are equal in size, ids and split."""
    ids: dict[str, int] = {}
    for feature in features:
        ids[feature.table] = ids.get(feature.table, 0) + feature.hotness
    groups: dict[tuple, list[Placement]] = {}
    for p in placements:
        size = p.table.rows, p.table.dim, ids[p.table.name]
        split = p.cluster, p.row_shards, p.column_shards, p.exchange, p.hot_rows
        kept = p.table.tier, p.table.slots
        groups.setdefault((*size, *split, *kept), []).append(p)
    return [*groups.values()]
