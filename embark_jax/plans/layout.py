"""The layout of a plan: one record for each shard says where it lies.

All shards of one kind lie in one *storage*, an array of ``[devices × slots_per_device,
width]`` in which device d's block holds its shards one after the other. So a plan of
any shape becomes a few uniformly sharded arrays, with one gather and one update a
device each; this also fuses tables. A storage is as large on every device as on its
fullest: this padding is the price of imbalance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from embark_jax.plans.placement import Placement, StorageKind
from embark_jax.plans.tables import FeatureSpec, TableSpec

SHARD_FIELDS = (
    *("table", "storage", "row_shard", "column_shard", "owner"),
    *("first_row", "stride", "rows", "first_column", "columns"),
    *("first_slot", "slots"),
)
SHARD = np.dtype([(field, np.int64) for field in SHARD_FIELDS])
"""The record of a shard.

- table, storage: their numbers in the plan.
- row_shard, column_shard: its numbers among the shards of the table's hot, or of its
  cold rows.
- owner: device that holds it; 0 where all do.
- first_row, stride, rows: it has these rows of the table, which go to row shards round
  robin: ``first_row + i * stride`` for i up to ``rows``.
- first_column, columns: it has these columns of them.
- first_slot: number of its first row in the owner's block, if each row had a slot.
- slots: slots that it adds to the block; fewer than rows in a cached storage, where the
  key index says in which slot a row lies.
"""


@dataclasses.dataclass(frozen=True, eq=False)
class Storage:
    """One array of the plan.

    Attributes:
      kind: properties that its shards share.
      tables: tables that have rows in it, by their number in the plan.
      shards: records of its shards: table by table, row shard by row shard.
      slots_per_device: rows of a device's block, padding included.
      rows_per_device: rows of the block if each row had a slot.
    """

    kind: StorageKind
    tables: Mapping[int, TableSpec]
    shards: np.ndarray
    slots_per_device: int
    rows_per_device: int

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def width(self) -> int:
        return self.kind.width

    @property
    def replicated(self) -> bool:
        return self.kind.of_cluster.replicated

    @property
    def cached(self) -> bool:
        return self.kind.tier != "device"

    @property
    def table(self) -> TableSpec:
        """The first of its tables; a dynamic table has no other beside it."""
        return next(iter(self.tables.values()))

    @property
    def row_shards(self) -> int:
        """Row shards of its first table."""
        return int(self.shards["stride"][0])

    @property
    def dynamic(self) -> bool:
        """Whether it is the storage of a dynamic table, whose rows have keys."""
        return bool(self.kind.table)


def lay_out(
    placements: Sequence[Placement], features: Sequence[FeatureSpec], devices: int
) -> tuple[Storage, ...]:
    """Groups shards into storages and gives each its slots, in the order of tables."""
    weighted = {feature.table for feature in features if feature.weighted}
    groups: dict[StorageKind, list[np.ndarray]] = {}
    for number, placement in enumerate(placements):
        for rows in placement.row_ranges:
            kind = StorageKind.of(
                rows.table,
                rows.cluster,
                rows.column_shards,
                rows.exchange,
                rows.table.name in weighted,
            )
            row_shards, column_shards = rows.row_shards, rows.column_shards
            shards = np.zeros(row_shards * column_shards, SHARD)
            row_shard, column_shard = np.divmod(np.arange(len(shards)), column_shards)
            of_rows = (rows.rows - row_shard + row_shards - 1) // row_shards
            shards["table"] = number
            shards["row_shard"], shards["column_shard"] = row_shard, column_shard
            shards["owner"] = rows.devices or 0
            shards["first_row"] = rows.begin + row_shard
            shards["stride"] = row_shards
            shards["rows"] = shards["slots"] = of_rows
            shards["first_column"] = column_shard * kind.width
            shards["columns"] = kind.width
            if kind.tier != "device" and rows.table.slots is not None:
                share = -(-rows.table.slots // row_shards)
                shards["slots"] = np.minimum(of_rows, share)
            groups.setdefault(kind, []).append(shards)
    storages = []
    for number, kind in enumerate(sorted(groups)):
        shards = np.concatenate(groups[kind])
        shards["storage"] = number
        order = np.argsort(shards["owner"], kind="stable")
        before = np.cumsum(shards["rows"][order]) - shards["rows"][order]
        _, first, counts = np.unique(
            shards["owner"][order], return_index=True, return_counts=True
        )
        shards["first_slot"][order] = before - np.repeat(before[first], counts)
        slots, rows = np.zeros((2, devices), np.int64)
        np.add.at(slots, shards["owner"], shards["slots"])
        np.add.at(rows, shards["owner"], shards["rows"])
        shards.flags.writeable = False
        tables = {
            int(table): placements[table].table for table in np.unique(shards["table"])
        }
        storages.append(
            Storage(kind, tables, shards, int(slots.max()), int(rows.max()))
        )
    return tuple(storages)
