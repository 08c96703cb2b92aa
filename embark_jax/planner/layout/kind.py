"""What the shards of one storage have in common."""

from __future__ import annotations

from typing import NamedTuple

from embark_jax.planner.request.forced import Cluster, Exchange
from embark_jax.tables import Evict, Tier


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
      tier, evict: where all their rows have room, and which leave slots first, as in
        ``TableSpec``.
      table: the name of a dynamic table, which lies in a storage of its own: there it
        grows, and no row of it moves.
    """

    cluster: Cluster
    width: int
    split: bool = False
    weighted: bool = False
    hierarchical: bool = False
    tier: Tier = "device"
    evict: Evict = "lru"
    table: str = ""

    @property
    def name(self) -> str:
        """Such as "rb_128", "rb_64_split", "ub_128_host" or "ub_128_host_user"."""
        name = f"{self.cluster}_{self.width}"
        name += "_split" * self.split + "_weighted" * self.weighted
        name += "_hierarchical" * self.hierarchical
        name += f"_{self.tier}" * (self.tier != "device")
        name += f"_{self.evict}" * (self.evict != "lru")
        return name + f"_{self.table}" * bool(self.table)


def storage_kind(
    cluster: Cluster,
    dim: int,
    column_shards: int,
    weighted: bool,
    exchange: Exchange,
    tier: Tier = "device",
    evict: Evict = "lru",
    dynamic: str = "",
) -> StorageKind:
    """The kind of storage of a table of ``dim`` columns; ``weighted`` if some of its
    ids have weights; ``dynamic`` the name of a dynamic table."""
    return StorageKind(
        cluster,
        dim // column_shards,
        split=column_shards > 1,
        weighted=weighted and cluster == "rb",
        hierarchical=exchange == "hierarchical",
        tier="device" if cluster == "dp" else tier,
        evict="lru" if cluster == "dp" or tier == "device" else evict,
        table=dynamic,
    )
