"""Storage kinds: the properties that the shards of one storage share."""

from __future__ import annotations

from typing import NamedTuple

from embark_jax.plans.clusters import (
    CLUSTERS,
    DIRECT,
    EXCHANGES,
    ClusterProperties,
    ExchangeProperties,
)
from embark_jax.plans.options import Cluster, Dtype, Evict, Exchange, Tier
from embark_jax.plans.tables import TableSpec


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

    cluster: Cluster
    width: int
    split: bool = False
    weighted: bool = False
    exchange: Exchange = DIRECT
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


def storage_kind(
    table: TableSpec,
    cluster: Cluster,
    column_shards: int = 1,
    exchange: Exchange = DIRECT,
    weighted: bool = False,
) -> StorageKind:
    """Returns the kind of storage of a table that is laid out so; ``weighted`` says
    whether some of its ids have weights."""
    properties = CLUSTERS[cluster]
    on_device = properties.replicated or table.tier == "device"
    return StorageKind(
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
