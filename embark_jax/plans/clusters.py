"""The clusters and the exchanges: what distinguishes one from the others.

Planner, plans, simulator and reports ask for these properties, never for a name. Beside
this table, a cluster is its collectives (``collectives.py``), its work in the cost
model, its stages in the simulator, and a file of ``embark_jax.embedding``.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from embark_jax.plans.options import Cluster, Exchange

Reach = Literal["fleet", "node", "rail"]
"""Devices of a collective: all, those of a node, or those of equal rank of all
nodes."""


@dataclasses.dataclass(frozen=True)
class ClusterProperties:
    """The properties of one cluster.

    Attributes:
      replicated: whether all devices hold all rows; it then has neither shards, owners
        nor a capacity.
      pools_at_owner: whether owners pool the rows of a bag, so that partial sums
        travel; elsewhere rows do, and the requester pools them.
      unique_ids: whether ids are made unique before they travel.
      exchanges: exchanges that its tables may have.
      own_values: 32-bit values that a device reads and writes beside sorts for each id
        of its own samples, once for each column shard.
      received_values: such values for each slot that an owner receives.
    """

    replicated: bool = False
    pools_at_owner: bool = False
    unique_ids: bool = False
    exchanges: tuple[Exchange, ...] = ("flat", "hierarchical")
    own_values: int = 0
    received_values: int = 0


@dataclasses.dataclass(frozen=True)
class ExchangeProperties:
    """The properties of one exchange.

    Attributes:
      staged: whether it goes inside nodes first, then between GPUs of equal rank, and
        partial sums are added up in between.
      padded: whether a message has the size of its buffer, or of what is in it.
    """

    staged: bool = False
    padded: bool = True

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


# Values beside sorts were counted in steps that were compiled for 8 H100s with Pallas
# kernels: experiments/planners/README.md.
CLUSTERS: dict[Cluster, ClusterProperties] = {
    "dp": ClusterProperties(replicated=True, exchanges=("flat",), own_values=16),
    # RB unpacks bags, and marks where they end.
    "rb": ClusterProperties(pools_at_owner=True, own_values=14, received_values=26),
    "ub": ClusterProperties(
        unique_ids=True,
        exchanges=("flat", "hierarchical", "ragged"),
        own_values=27,
        received_values=12,
    ),
}
EXCHANGES: dict[Exchange, ExchangeProperties] = {
    "flat": ExchangeProperties(),
    "hierarchical": ExchangeProperties(staged=True),
    "ragged": ExchangeProperties(padded=False),
}
REPLICATED: Cluster = "dp"
"""The cluster of hot rows, and of tables that all devices hold whole."""
DIRECT: Exchange = "flat"
"""The exchange that every cluster has."""
SHARDED: tuple[Cluster, ...] = tuple(
    cluster for cluster, properties in CLUSTERS.items() if not properties.replicated
)
