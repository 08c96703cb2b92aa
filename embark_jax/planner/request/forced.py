"""Forced placements: the parts of a table's placement that the user fixes."""

from __future__ import annotations

import dataclasses
from typing import Literal

Cluster = Literal["dp", "rb", "ub"]
Exchange = Literal["flat", "hierarchical"]


@dataclasses.dataclass(frozen=True)
class ForcedPlacement:
    """The parts of a placement that the user fixes; ``None`` leaves one to the
    planner."""

    cluster: Cluster | None = None
    row_shards: int | None = None
    column_shards: int | None = None
    devices: tuple[int, ...] | None = None
    exchange: Exchange | None = None
    hot_rows: int | None = None

    @property
    def sharded(self) -> bool:
        """Whether it makes sense only for a table that is not replicated."""
        fixed = self.row_shards, self.column_shards, self.devices, self.exchange
        return fixed != (None,) * 4 or bool(self.hot_rows)

    @property
    def is_fixed(self) -> bool:
        """Whether the user fixes anything."""
        return self.cluster is not None or self.sharded


FREE = ForcedPlacement()
"""The placement in which nothing is fixed."""
