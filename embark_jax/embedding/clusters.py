"""Which cluster moves the rows of a storage, by which exchange."""

from __future__ import annotations

from collections.abc import Callable

from embark_kernels import Implementation
from jax.sharding import Mesh

from embark_jax.embedding.cluster import Cluster
from embark_jax.embedding.data_parallel import DataParallel
from embark_jax.embedding.exchange import Exchange, FlatExchange, HierarchicalExchange
from embark_jax.embedding.indexing import StorageIndex, index_storage
from embark_jax.embedding.mesh import has_gpus
from embark_jax.embedding.ragged import RaggedExchange
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
    mesh: Mesh,
    implementation: Implementation,
) -> Cluster:
    """Makes the cluster of a storage; arguments as in ``EmbeddingCollection``, but for
    the implementation of kernels, which is chosen."""
    index = index_of(plan, storage)
    return CLUSTERS[storage.cluster](
        index=index,
        exchange=_make_exchange(plan, storage, index, mesh),
        capacity=plan.capacities.get(storage.name, 0),
        wire=wire,
        implementation=implementation,
    )


def index_of(plan: Plan, storage: Storage) -> StorageIndex:
    """Returns the index of a storage of the plan."""
    batch = plan.batch_size // plan.devices
    return index_storage(storage, plan.features, plan.devices, batch, plan.events)


def _make_exchange(
    plan: Plan, storage: Storage, index: StorageIndex, mesh: Mesh
) -> Exchange:
    properties = storage.kind.of_exchange
    # RB alone sends partial sums, and its index has one block.
    partial_sums = index.blocks[0].partial_sums
    if properties.staged:
        return HierarchicalExchange(partial_sums, plan.nodes, plan.gpus_per_node)
    # Where XLA has no ragged collective, padding travels, with the same result.
    if not properties.padded and plan.devices > 1 and has_gpus(mesh):
        return RaggedExchange(partial_sums)
    return FlatExchange(partial_sums)
