"""Forced placements: the parts of a table's placement that the user fixes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from embark_jax.plans.clusters import REPLICATED
from embark_jax.plans.options import ClusterName, ExchangeName
from embark_jax.plans.tables import TableSpec


@dataclasses.dataclass(frozen=True)
class ForcedPlacement:
    """The parts of a placement that the user fixes; ``None`` leaves one to the
    planner.

    Attributes:
      cluster: "dp" replicates the table, "rb" pools at the owner of a row, "ub" at the
        requester.
      row_shards, column_shards: numbers of shards that rows and columns are split into.
      devices: owner of shard (j, k) at ``j * column_shards + k``.
      exchange: how ids, rows and gradients travel, such as "flat".
      hot_rows: number of rows that are replicated on all devices; 0 forbids them.
    """

    cluster: ClusterName | None = None
    row_shards: int | None = None
    column_shards: int | None = None
    devices: tuple[int, ...] | None = None
    exchange: ExchangeName | None = None
    hot_rows: int | None = None

    @property
    def sharded(self) -> bool:
        """Whether it makes sense only for a table that is not replicated."""
        fixed = self.row_shards, self.column_shards, self.devices, self.exchange
        return fixed != (None,) * 4 or bool(self.hot_rows)


FREE = ForcedPlacement()
"""The placement in which nothing is fixed."""
SMALL_TABLE_BYTES = 1 << 20
"""Bytes of a table up to which all devices may hold it whole, for hot batches: a
hundred such tables take 0.1 GB of each."""


def with_small_replicated(
    tables: Iterable[TableSpec], forced: Mapping[str, ForcedPlacement]
) -> dict[str, ForcedPlacement]:
    """Returns forced placements that replicate small tables, too, unless the user fixes
    something of theirs."""
    small = [
        table.name
        for table in tables
        if forced.get(table.name, FREE) == FREE
        and not (table.cached or table.is_dynamic)
        and 4 * table.rows * table.dim <= SMALL_TABLE_BYTES
    ]
    return dict(forced) | dict.fromkeys(small, ForcedPlacement(REPLICATED))
