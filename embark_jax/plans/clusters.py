"""The clusters and the exchanges: what distinguishes one from the others.

Planner, plans, simulator and reports ask for these properties, never for a name. Beside
this table, a cluster is its exchanges and its work in the cost model, its stages in the
simulator, and a file of ``embark_jax.embedding``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, NamedTuple

ClusterName = Literal["dp", "rb", "ub"]
"""How a table's rows reach the samples: DP replicates it; RB pools at the owner; UB
makes ids unique, and pools at the requester."""
ExchangeName = Literal["flat", "hierarchical"]
"""How ids, rows and gradients travel: directly between any two devices, or inside
nodes first."""
Kernels = Literal["xla", "mosaic_gpu"]
"""What looks up, sums and updates rows: plain XLA, or the Pallas kernels for GPUs."""
Reach = Literal["fleet", "node", "rail"]
"""Devices of a collective: all, those of a node, or those of equal rank of all
nodes."""


class IdTraffic(NamedTuple):
    """What an implementation moves in memory for each id, beside rows.

    Attributes:
      own_key_bytes, own_values: bytes of the key by which ids of a device's own samples
        are sorted, 0 if they are not, and 32-bit values that are read and written
        beside the sort; both once for each column shard.
      received_key_bytes, received_values: the same for each slot that an owner
        receives, or in DP for each id that devices tell each other.
    """

    own_key_bytes: int
    own_values: int
    received_key_bytes: int
    received_values: int


@dataclasses.dataclass(frozen=True)
class ClusterProperties:
    """The properties of one cluster.

    Attributes:
      replicated: whether all devices hold all rows; it then has neither shards, owners
        nor a capacity.
      pools_at_owner: whether owners pool the rows of a bag, so that partial sums
        travel; elsewhere rows do, and the requester pools them.
      unique_ids: whether ids are made unique before they travel.
      ids: what each implementation moves for an id.
      exchanges: exchanges that its tables may have.
    """

    ids: Mapping[Kernels, IdTraffic]
    replicated: bool = False
    pools_at_owner: bool = False
    unique_ids: bool = False
    exchanges: tuple[ExchangeName, ...] = ("flat", "hierarchical")


@dataclasses.dataclass(frozen=True)
class ExchangeProperties:
    """The properties of one exchange.

    Attributes:
      staged: whether it goes inside nodes first, then between GPUs of equal rank, and
        partial sums are added up in between.
    """

    staged: bool = False

    def reaches(self, nodes: int, gpus_per_node: int) -> tuple[Reach, ...]:
        """Returns the devices of its collectives, one after the other, on a fleet of
        this size."""
        if nodes * gpus_per_node == 1:
            return ()
        if not self.staged:
            return ("fleet",)
        inside: tuple[Reach, ...] = ("node",) if gpus_per_node > 1 else ()
        between: tuple[Reach, ...] = ("rail",) if nodes > 1 else ()
        return inside + between


# Keys are those of the program: an owner's number where each owner pools a bag in one
# sum, else a row; plain XLA marks the rows that it touches instead, unless there are
# far more rows than ids. Values were counted in steps that were compiled for 8 H100s:
# experiments/planners/README.md.
CLUSTERS: dict[ClusterName, ClusterProperties] = {
    "dp": ClusterProperties(
        {"mosaic_gpu": IdTraffic(4, 16, 4, 23), "xla": IdTraffic(0, 14, 0, 44)},
        replicated=True,
        exchanges=("flat",),
    ),
    "rb": ClusterProperties(
        {"mosaic_gpu": IdTraffic(2, 11, 4, 10), "xla": IdTraffic(2, 13, 0, 43)},
        pools_at_owner=True,
    ),
    "ub": ClusterProperties(
        {"mosaic_gpu": IdTraffic(4, 27, 4, 12), "xla": IdTraffic(4, 35, 0, 38)},
        unique_ids=True,
    ),
}
EXCHANGES: dict[ExchangeName, ExchangeProperties] = {
    "flat": ExchangeProperties(),
    "hierarchical": ExchangeProperties(staged=True),
}
REPLICATED: ClusterName = "dp"
"""The cluster of hot rows, and of tables that all devices hold whole."""
DIRECT: ExchangeName = "flat"
"""The exchange that every cluster has."""
SHARDED: tuple[ClusterName, ...] = tuple(
    cluster for cluster, properties in CLUSTERS.items() if not properties.replicated
)
FOR_SEQUENCES: tuple[ClusterName, ...] = tuple(
    cluster for cluster, properties in CLUSTERS.items() if not properties.pools_at_owner
)
"""The clusters of tables that a sequence reads: owners that pool have nothing to add up
there, and would send a row for each id."""
