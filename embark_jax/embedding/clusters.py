"""Which cluster moves the rows of a storage, by which exchange."""

from __future__ import annotations

from collections.abc import Callable

from embark_kernels import Implementation

from embark_jax.embedding.cluster import Cluster
from embark_jax.embedding.data_parallel import DataParallel
from embark_jax.embedding.exchange import Exchange, FlatExchange, HierarchicalExchange
from embark_jax.embedding.indexing import StorageIndex, index_storage
from embark_jax.embedding.reduction import ReductionBased
from embark_jax.embedding.unique import UniqueBased
from embark_jax.plans import options
from embark_jax.plans.plan import Plan
from embark_jax.plans.storage import Storage
from embark_jax.plans.wire import Wire

CLUSTERS: dict[options.Cluster, Callable[..., Cluster]] = {
    "dp": DataParallel,
    "rb": ReductionBased,
    "ub": UniqueBased,
}
"""The registry of clusters; each is called with the arguments of ``Cluster``."""


def make_cluster(
    plan: Plan,
    storage: Storage,
    wire: Wire,
    implementation: Implementation,
) -> Cluster:
    """Makes the cluster of a storage; arguments as in ``EmbeddingCollection``, but for
    the implementation of kernels, which is chosen."""
    index = index_of(plan, storage)
    return CLUSTERS[storage.cluster](
        index=index,
        exchange=_make_exchange(plan, storage, index),
        capacity=plan.capacities.get(storage.name, 0),
        wire=wire,
        implementation=implementation,
    )


def index_of(plan: Plan, storage: Storage) -> StorageIndex:
    """Returns the index of a storage of the plan."""
    batch = plan.batch_size // plan.devices
    return index_storage(storage, plan.features, plan.devices, batch, plan.events)


def _make_exchange(plan: Plan, storage: Storage, index: StorageIndex) -> Exchange:
    # RB alone sends partial sums, and its index has one block.
    partial_sums = index.blocks[0].partial_sums
    if storage.kind.of_exchange.staged:
        return HierarchicalExchange(partial_sums, plan.nodes, plan.gpus_per_node)
    return FlatExchange(partial_sums)
