"""Storages: the arrays in which all shards of a plan lie.

All shards of one cluster and one width lie in one *storage*, an array of
``[devices × slots_per_device, width]`` in which device d's block holds its shards one
after the other; tables that need other exchanges than the rest, because they are split
by columns, their ids have weights, or the plan says so, lie apart. A plan of any shape
so becomes a few uniformly sharded arrays, with one gather and one update a device each;
that also fuses tables. A storage is as large on every device as on its fullest: this
padding is the price of imbalance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple, get_args

import numpy as np

from embark_jax.planner.request.forced import Cluster, Exchange
from embark_jax.tables import FeatureSpec, TableSpec


class StorageKind(NamedTuple):
    """What the shards of one storage have in common.

    Attributes:
      cluster: of their tables.
      width: columns of a shard.
      split: whether their tables are split by columns. Each of their rows then lies on
        several devices, and optimizers of whole rows need an exchange that other
        storages do not.
      weighted: whether weights travel with their ids: in RB, where owners pool.
      hierarchical: whether what travels does so inside nodes first, then between GPUs
        of equal rank, or directly between any two devices.
    """

    cluster: Cluster
    width: int
    split: bool = False
    weighted: bool = False
    hierarchical: bool = False

    @property
    def name(self) -> str:
        """Such as "rb_128" or "rb_64_split"."""
        name = f"{self.cluster}_{self.width}"
        name += "_split" * self.split + "_weighted" * self.weighted
        return name + "_hierarchical" * self.hierarchical


def storage_kind(
    cluster: Cluster, dim: int, column_shards: int, weighted: bool, exchange: Exchange
) -> StorageKind:
    """Of a table of ``dim`` columns; ``weighted`` if some of its ids have weights."""
    return StorageKind(
        cluster,
        dim // column_shards,
        split=column_shards > 1,
        weighted=weighted and cluster == "rb",
        hierarchical=exchange == "hierarchical",
    )


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where the shards of one table live.

    Rows go in turn: row r is row ``r // row_shards`` of row shard ``r % row_shards``.

    Attributes:
      table: the table.
      cluster: "dp" replicates it; "rb" pools at the owner, "ub" at the requester.
      row_shards, column_shards: into how many shards its rows and columns are split.
      devices: owner of shard (j, k) at ``j * column_shards + k``; empty for "dp".
      exchange: how its ids, rows and gradients travel; "flat" for "dp".
      reason: why the planner chose this, for the report.
    """

    table: TableSpec
    cluster: Cluster
    row_shards: int = 1
    column_shards: int = 1
    devices: tuple[int, ...] = ()
    exchange: Exchange = "flat"
    reason: str = ""

    @property
    def width(self) -> int:
        return self.table.dim // self.column_shards

    def shard_rows(self, row_shard: int) -> int:
        """Rows of the table that row shard ``row_shard`` holds."""
        return len(range(row_shard, self.table.rows, self.row_shards))

    def problems(self, devices: int) -> list[str]:
        """What is wrong with this placement on so many devices."""
        found, name = [], f"table {self.table.name!r}"
        if self.cluster not in get_args(Cluster):
            return [f"{name}: cluster is {self.cluster!r}, must be dp, rb or ub"]
        for key in ("row_shards", "column_shards"):
            if getattr(self, key) < 1:
                return [f"{name}: {key} is {getattr(self, key)}, must be >= 1"]
        if self.table.dim % self.column_shards:
            found.append(
                f"{name}: column_shards is {self.column_shards}, must divide "
                f"dim {self.table.dim}"
            )
        elif self.column_shards > 1 and self.width == 1:
            found.append(
                f"{name}: column_shards is {self.column_shards}, must leave a width of "
                f"at least 2 of dim {self.table.dim}"
            )
        if self.row_shards > self.table.rows:
            found.append(
                f"{name}: row_shards is {self.row_shards}, must be at most its "
                f"{self.table.rows} rows"
            )
        if self.exchange not in get_args(Exchange):
            found.append(
                f"{name}: exchange is {self.exchange!r}, must be one of "
                f"{', '.join(get_args(Exchange))}"
            )
        if self.cluster == "dp":
            if self.exchange != "flat":
                found.append(f"{name}: cluster dp is replicated, takes no exchange")
            if (self.row_shards, self.column_shards, self.devices) != (1, 1, ()):
                found.append(f"{name}: cluster dp is replicated, takes no shards")
            return found
        shards = self.row_shards * self.column_shards
        if len(self.devices) != shards:
            found.append(
                f"{name}: devices names {len(self.devices)} owners, must name one for "
                f"each of its {self.row_shards} × {self.column_shards} shards"
            )
        bad = sorted({d for d in self.devices if not 0 <= d < devices})
        if bad:
            found.append(f"{name}: devices {bad} must lie in 0..{devices - 1}")
        return found


@dataclasses.dataclass(frozen=True)
class Storage:
    """One array of the plan and where each shard begins in it.

    Attributes:
      kind: what its shards have in common.
      slots_per_device: rows of its block on every device, padding included.
      placements: the tables in it.
      first_slots: for each table ``[row_shards, column_shards]``, the slot, in its
        owner's block, at which a shard begins.
    """

    kind: StorageKind
    slots_per_device: int
    placements: tuple[Placement, ...]
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
        return self.cluster == "dp"

    def owners(self, table: str) -> np.ndarray:
        """``[row_shards, column_shards]`` owner of each shard; zeros if replicated."""
        (placement,) = (p for p in self.placements if p.table.name == table)
        shape = (placement.row_shards, placement.column_shards)
        if self.replicated:
            return np.zeros(shape, np.int32)
        return np.array(placement.devices, np.int32).reshape(shape)


def lay_out(
    placements: Sequence[Placement], features: Sequence[FeatureSpec], devices: int
) -> tuple[Storage, ...]:
    """Groups shards into storages and gives each its slots, in the order of tables."""
    weighted = {feature.table for feature in features if feature.weighted}
    groups: dict[StorageKind, list[Placement]] = {}
    for placement in placements:
        kind = storage_kind(
            placement.cluster,
            placement.table.dim,
            placement.column_shards,
            placement.table.name in weighted,
            placement.exchange,
        )
        groups.setdefault(kind, []).append(placement)
    storages = []
    for kind, members in sorted(groups.items(), key=lambda item: item[0]):
        used = [0] * devices
        first_slots = {}
        for placement in members:
            first = np.zeros((placement.row_shards, placement.column_shards), np.int64)
            owners = placement.devices or (0,)
            for index, owner in enumerate(owners):
                j, k = divmod(index, placement.column_shards)
                first[j, k] = used[owner]
                used[owner] += placement.shard_rows(j)
            first_slots[placement.table.name] = first
        storages.append(Storage(kind, max(used), tuple(members), first_slots))
    return tuple(storages)
