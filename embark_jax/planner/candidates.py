"""The ways to split a table that the search chooses among, with what each costs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from embark_jax.planner.cost import CostModel
from embark_jax.planner.memory import Memory
from embark_jax.planner.storage import Cluster, Exchange, Placement
from embark_jax.planner.workload import Shape, TableUse, Workload
from embark_jax.tables import TableSpec

MIN_WIDTH = 8
"""Columns of a shard at least: 32 bytes, the sector in which GPU memory is read
(https://docs.nvidia.com/cuda/cuda-c-best-practices-guide, coalesced access)."""


@dataclasses.dataclass(frozen=True)
class ForcedPlacement:
    """What the user fixes of a table's placement; ``None`` leaves it to the planner."""

    cluster: Cluster | None = None
    row_shards: int | None = None
    column_shards: int | None = None
    devices: tuple[int, ...] | None = None
    exchange: Exchange | None = None

    @property
    def sharded(self) -> bool:
        """Whether it only makes sense for a table that is not replicated."""
        fixed = self.row_shards, self.column_shards, self.devices, self.exchange
        return fixed != (None,) * 4


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A shape, and the loads that it brings.

    Attributes:
      shape: the cluster and the split.
      pieces: of each shard: lanes that its owner pools for.
      certain, expected: ``[row_shards]`` ids that a device sends to each.
      rows: ``[row_shards]`` slots of each.
      owner_ms: ``[row_shards]`` time of the owner of each.
      everywhere_ms, everywhere_bytes: of every device alike.
    """

    shape: Shape
    pieces: int
    certain: np.ndarray
    expected: np.ndarray
    rows: np.ndarray
    owner_ms: np.ndarray
    everywhere_ms: float
    everywhere_bytes: float

    @property
    def replicated(self) -> bool:
        return self.shape.cluster == "dp"

    @functools.cached_property
    def loads(self) -> np.ndarray:
        """``[5, row_shards]`` pieces, certain and expected ids, rows, and the owner's
        time of each."""
        pieces = np.full(len(self.rows), float(self.pieces))
        ids = self.certain, self.expected
        return np.stack([pieces, *ids, self.rows, self.owner_ms])

    def ids(self, slack: float) -> np.ndarray:
        """``[row_shards]`` places for the ids of each, without those that chance takes
        when few are expected.

        Args:
          slack: places for each id expected.
        """
        return self.certain + slack * self.expected


def weigh(
    shape: Shape, workload: Workload, model: CostModel, memory: Memory
) -> Candidate:
    """The loads of a shape."""
    if shape.cluster == "dp":
        none = np.zeros(0)
        return Candidate(
            shape,
            *(0, none, none, none, none),
            model.everywhere_ms(shape),
            memory.everywhere_bytes(shape),
        )
    certain, expected = shape.sent_ids(workload)
    return Candidate(
        shape,
        shape.use.lanes if shape.cluster == "rb" else 0,
        certain,
        expected,
        shape.shard_rows,
        model.owner_ms(shape),
        model.everywhere_ms(shape),
        memory.everywhere_bytes(shape),
    )


def shapes(
    use: TableUse,
    force: ForcedPlacement,
    devices: int,
    clusters: tuple[Cluster, ...],
    exchange: Exchange = "flat",
) -> Iterator[Shape]:
    """The shapes worth a try: halvings of rows and columns, and even shares of the
    fleet, that make at most one shard for each device.

    Args:
      use, force: of the table.
      devices: in the fleet.
      clusters: to choose from.
      exchange: of RB, unless it is forced. In UB a hierarchical one saves nothing, as
        no partial sums are added up.
    """
    if force.cluster is not None:
        clusters = (force.cluster,)
    elif force.sharded:
        clusters = tuple(cluster for cluster in clusters if cluster != "dp")
    elif devices == 1 and "dp" in clusters:
        clusters = ("dp",)
    for cluster in clusters:
        if cluster == "dp":
            yield Shape(use, "dp")
            continue
        for column_shards in _column_splits(use, force):
            for row_shards in _row_splits(use, force, devices, column_shards):
                forced = force.row_shards is not None or force.devices is not None
                if not forced and row_shards * column_shards > devices:
                    continue
                chosen = force.exchange or (exchange if cluster == "rb" else "flat")
                yield Shape(use, cluster, row_shards, column_shards, chosen)


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
    placement = Placement(table, cluster, rows, columns, owners, exchange)
    return placement.problems(devices)
