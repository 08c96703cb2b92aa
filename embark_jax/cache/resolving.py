"""Owners resolve the keys of cached tables: routes of keys become routes of slots.

Devices send an owner the keys of the rows that they ask for: the number of a row in its
owner's block, or in a dynamic table the 64 bits that its features have. The owner's key
index says in which slot each row lies, or will lie. Which rows move depends on ids
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from embark_jax.cache.directory import default_buckets
from embark_jax.cache.key_index import (
    Demand,
    KeyIndex,
    empty_index,
    rehash,
    resolve,
    undo,
)
from embark_jax.embedding.cluster import ShardedCluster
from embark_jax.embedding.collection import (
    BATCH,
    EmbeddingCollection,
    Routes,
    TableState,
)
from embark_jax.embedding.exchange import gather, largest_over_devices

MAXIMA = 3
"""The first so many of a storage's ``Counts`` are those of the device that has the
most; the others are sums over devices."""
Indexes = dict[str, KeyIndex]
"""Key indexes by storage name."""


def init_indexes(collection: EmbeddingCollection) -> Indexes:
    """Creates key indexes of the cached storages, without keys; sharded like those."""

    def create():
        return {n: empty_index(s.slots_per_device) for n, s in cached.items()}

    cached = collection.cached
    return jax.jit(collection.map(create, (), BATCH))()


def grow_directories(
    collection: EmbeddingCollection, indexes: Mapping[str, KeyIndex], factor: int = 2
) -> Indexes:
    """Returns indexes with the same keys in the same slots, and new directories of
    ``factor`` times the buckets, which are doubled until all keys find a way."""
    grown, unplaced = dict(indexes), True
    while unplaced:
        buckets = {
            name: factor * len(index.directory.keys) // collection.plan.devices
            for name, index in grown.items()
        }

        def grow(indexes, buckets=buckets):
            return _split(
                {n: rehash(i, i.slots, buckets[n]) for n, i in indexes.items()}
            )

        mapped = collection.map(grow, (BATCH,), (BATCH, PartitionSpec()))
        grown, left = jax.jit(mapped)(grown)
        unplaced, factor = bool(np.asarray(left).any()), 2
    return grown


def grow_slots(
    collection: EmbeddingCollection,
    indexes: Mapping[str, KeyIndex],
    tables: TableState,
) -> tuple[Indexes, TableState]:
    """Returns the arrays with the same rows in the same slots, and room for more slots.

    Args:
      collection: collection of the plan with more slots.
      indexes, tables: those of the plan before, for the same mesh.
    """
    cached = collection.cached

    def grow(indexes, tables):
        rehashed = {}
        for name, index in indexes.items():
            slots = cached[name].slots_per_device
            buckets = max(len(index.directory.keys), default_buckets(slots))
            more = slots - index.slots
            rehashed[name] = rehash(index, slots, buckets) if more else (index, nothing)
            tables[name] = jax.tree.map(
                lambda array, more=more: jnp.pad(array, ((0, more), (0, 0))),
                tables[name],
            )
        return *_split(rehashed), tables

    nothing = jnp.zeros(1, jnp.int32)
    arrays = {n: (tables.storages[n], tables.optimizer[n]) for n in cached}
    out_specs = BATCH, PartitionSpec(), BATCH
    mapped = jax.jit(collection.map(grow, (BATCH, BATCH), out_specs))
    grown, unplaced, arrays = mapped(dict(indexes), arrays)
    if np.asarray(unplaced).any():
        grown = grow_directories(collection, grown)
    return grown, TableState(
        tables.storages | {n: storage for n, (storage, _) in arrays.items()},
        tables.optimizer | {n: states for n, (_, states) in arrays.items()},
    )


def resolve_routes(
    collection: EmbeddingCollection,
    indexes: Mapping[str, KeyIndex],
    routes: Routes,
    to_score: bool = False,
) -> tuple[Indexes, Routes, dict[str, Demand]]:
    """Lets owners say in which slots the rows of a batch lie; must run under jit.

    Args:
      collection: the embedding tables.
      indexes: indexes before the batch.
      routes: result of ``EmbeddingCollection.route``.
      to_score: whether rows come back after the batch, so that any may leave its slot.

    Returns:
      The indexes, the routes that lookups and updates take once the rows have moved,
      and the moves.
    """
    cached = collection.cached
    clusters = {n: cast(ShardedCluster, collection.clusters[n]) for n in cached}

    def resolve_all(indexes, routes):
        demands, counts = {}, []
        for name, cluster in clusters.items():
            kind, table = cached[name].kind, cached[name].table
            # Of a dynamic table rows leave once it has grown to its most.
            may_evict = to_score or table.max_slots in (None, table.slots)
            keys, present = routes[name].keys
            options = kind.evict, may_evict, cluster.group
            found = resolve(indexes[name], keys, present, *options)
            indexes[name] = found.index
            routes[name] = cluster.with_slots(routes[name], found.slot, found.touched)
            if kind.dtype != "float32":
                slots = found.touched.row
                row_keys = found.index.slot_keys.at[slots].get(mode="clip")
                routes[name] = routes[name]._replace(row_keys=row_keys)
            demands[name] = found.demand
            counts.append(jnp.concatenate(found.demand.counts))
        counts = gather(jnp.stack(counts)[None])  # of all devices, by one collective
        maxima = counts[..., :MAXIMA].max(axis=0)
        counts = jnp.concatenate([maxima, counts[..., MAXIMA:].sum(axis=0)], axis=1)
        for name, storage_counts in zip(demands, counts, strict=True):
            demands[name] = demands[name]._replace(counts=storage_counts)
        return indexes, routes, demands

    demand = Demand(BATCH, BATCH, PartitionSpec())  # pyright: ignore
    out_specs = BATCH, BATCH, dict.fromkeys(clusters, demand)
    cached_routes = {name: routes.storages[name] for name in clusters}
    mapped = collection.map(resolve_all, (BATCH, BATCH), out_specs)
    new_indexes, resolved, demands = mapped(dict(indexes), cached_routes)
    routes = routes._replace(storages={**routes.storages, **resolved})
    return new_indexes, routes, demands


def undo_moves(
    collection: EmbeddingCollection,
    indexes: Mapping[str, KeyIndex],
    demands: Mapping[str, Demand],
) -> tuple[Indexes, jax.Array]:
    """Takes back what ``resolve_routes`` did to indexes for the last batch; must run
    under jit. Returns the largest number of keys without a way in a directory, too."""

    def undo_all(indexes, demands):
        return _split({name: undo(indexes[name], demands[name]) for name in indexes})

    changes = {name: demand._replace(counts=()) for name, demand in demands.items()}
    mapped = collection.map(undo_all, (BATCH, BATCH), (BATCH, PartitionSpec()))
    return mapped(dict(indexes), changes)


def _split(
    changed: Mapping[str, tuple[KeyIndex, jax.Array]],
) -> tuple[Indexes, jax.Array]:
    """Returns indexes, and the most keys without a way in any of their directories."""
    unplaced = jnp.concatenate([unplaced for _, unplaced in changed.values()])
    indexes = {name: index for name, (index, _) in changed.items()}
    return indexes, largest_over_devices(unplaced)
