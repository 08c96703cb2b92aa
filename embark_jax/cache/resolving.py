"""Owners resolve the keys of cached tables: routes of keys become routes of slots.

A cached storage has fewer slots than its tables have rows. Up to the exchange of ids,
every row counts as if it had a slot: a key is the row's number in its owner's block, or
in a dynamic table the 64 bits that its features have. Then the owner resolves keys: its
key index says in which slot each row lies, or will lie. Which rows move depends on ids
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from embark_jax.cache.directory import default_buckets
from embark_jax.cache.key_index import (
    Before,
    KeyIndex,
    Moves,
    empty_index,
    rehash,
    resolve,
    undo,
)
from embark_jax.cache.leaving import SlotRules
from embark_jax.embedding.arrays import (
    BATCH,
    OptimizerState,
    Routes,
    Storages,
)
from embark_jax.embedding.cluster import ShardedCluster
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.exchange import gather, largest_over_devices
from embark_jax.embedding.keys import WORDS
from embark_jax.plans.storage import Storage


class Counts(NamedTuple):
    """What a batch asks for from one cached storage.

    Attributes:
      coming, needed, homeless: of the device that has the most: rows that come, slots
        that the batch needs, as in ``Resolved``, and keys without room in the
        directory.
      asked, missing, filled: of all devices: rows that are asked for, those of them
        that had no slot, and slots that hold a row.
    """

    coming: int
    needed: int
    homeless: int
    asked: int
    missing: int
    filled: int


MAXIMA = 3
"""The first so many of ``Counts`` are maxima over devices; the others are sums."""


class Demand(NamedTuple):
    """The demand of a batch on one cached storage, on the devices.

    Attributes:
      moves: moves on each device.
      before: what they change on each device.
      counts: ``[6]`` int32 numbers of ``Counts``.
    """

    moves: Moves
    before: Before
    counts: jax.Array

    def on_host(self) -> Counts:
        """Returns the counts; waits for them."""
        return Counts(*np.asarray(self.counts).tolist())


def words_of_keys(storage: Storage) -> int:
    """Returns the 32-bit words of a key: of a dynamic table, or of a row's number."""
    return WORDS if storage.kind.table else 1


def slot_rules(storage: Storage) -> SlotRules:
    """Returns the rules of a storage's slots. Of a dynamic table rows leave once it has
    grown to its most."""
    if not storage.kind.table:
        return SlotRules(storage.kind.evict)
    table = storage.ranges[0].table
    return SlotRules(storage.kind.evict, table.slots == table.max_slots)


def init_indexes(collection: EmbeddingCollection) -> dict[str, KeyIndex]:
    """Creates key indexes of the cached storages, without keys; sharded like those."""
    storages = collection.cached

    def create():
        return {
            name: empty_index(storage.slots_per_device, words_of_keys(storage))
            for name, storage in storages.items()
        }

    return jax.jit(collection.map(create, (), BATCH))()


def grow_directories(
    collection: EmbeddingCollection, indexes: Mapping[str, KeyIndex], factor: int = 2
) -> dict[str, KeyIndex]:
    """Returns indexes with the same keys in the same slots, and new directories of
    ``factor`` times the buckets, which are doubled until all keys find room."""
    grown, homeless = dict(indexes), True
    while homeless:
        buckets = {
            name: factor * len(index.way_keys) // collection.plan.devices
            for name, index in grown.items()
        }

        def grow(indexes, buckets=buckets):
            rehashed = {n: rehash(i, i.slots, buckets[n]) for n, i in indexes.items()}
            left = jnp.concatenate([left for _, left in rehashed.values()])
            indexes = {name: index for name, (index, _) in rehashed.items()}
            return indexes, largest_over_devices(left)

        mapped = collection.map(grow, (BATCH,), (BATCH, PartitionSpec()))
        grown, left = jax.jit(mapped)(grown)
        homeless, factor = bool(np.asarray(left).any()), 2
    return grown


def grow_slots(
    collection: EmbeddingCollection,
    indexes: Mapping[str, KeyIndex],
    storages: Storages,
    state: OptimizerState,
) -> tuple[dict[str, KeyIndex], Storages, OptimizerState]:
    """Returns the arrays with the same rows in the same slots, and room for more slots.

    Args:
      collection: collection of the plan with more slots.
      indexes, storages, state: those of the plan before, for the same mesh.
    """
    cached = collection.cached

    def grow(indexes, storages, state):
        more = {n: cached[n].slots_per_device - i.slots for n, i in indexes.items()}
        left = [jnp.zeros(1, jnp.int32)]

        def padded(array, name):
            return jnp.pad(array, ((0, more[name]), (0, 0)))

        for name in filter(more.get, more):
            slots, old = cached[name].slots_per_device, indexes[name]
            buckets = max(len(old.way_keys), default_buckets(slots))
            indexes[name], homeless = rehash(old, slots, buckets)
            left.append(homeless)
            storages[name] = padded(storages[name], name)
            state[name] = {n: padded(values, name) for n, values in state[name].items()}
        return indexes, storages, state, largest_over_devices(jnp.concatenate(left))

    specs = (BATCH,) * 3
    mapped = jax.jit(collection.map(grow, specs, (*specs, PartitionSpec())))
    some = {n: storages[n] for n in cached}, {n: state[n] for n in cached}
    grown, *arrays, left = mapped(dict(indexes), *some)
    if np.asarray(left).any():
        grown = grow_directories(collection, grown)
    return grown, {**storages, **arrays[0]}, {**state, **arrays[1]}


def resolve_routes(
    collection: EmbeddingCollection,
    indexes: Mapping[str, KeyIndex],
    routes: Routes,
    to_score: bool = False,
) -> tuple[dict[str, KeyIndex], Routes, dict[str, Demand]]:
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
        changes, counts = {}, []
        for name, cluster in clusters.items():
            words, present = routes[name].keys
            rules = slot_rules(cached[name])
            rules = rules._replace(may_evict=to_score or rules.may_evict)
            resolved = resolve(indexes[name], words, present, rules, cluster.group)
            routes[name] = cluster.with_slots(
                routes[name], resolved.slot, resolved.touched
            )
            indexes[name] = resolved.index
            if cached[name].kind.dtype != "float32":
                slots = cluster.touched(routes[name])
                row_keys = resolved.index.slot_keys.at[slots].get(mode="clip")
                routes[name] = routes[name]._replace(row_keys=row_keys)
            changes[name] = resolved.moves, resolved.before
            counts.append(
                jnp.concatenate(
                    [
                        resolved.moves.count,
                        resolved.needed,
                        resolved.homeless,
                        resolved.unique_keys,
                        resolved.missing,
                        resolved.index.filled,
                    ]
                )
            )
        counts = gather(jnp.stack(counts)[None])  # of all devices, by one collective
        maxima = counts[..., :MAXIMA].max(axis=0)
        counts = jnp.concatenate([maxima, counts[..., MAXIMA:].sum(axis=0)], axis=1)
        demands = {}
        for i, (name, (moves, before)) in enumerate(changes.items()):
            demands[name] = Demand(moves, before, counts[i])
        return indexes, routes, demands

    demand = Demand(BATCH, BATCH, PartitionSpec())  # pyright: ignore
    new_indexes, resolved, demands = collection.map(
        resolve_all,
        (BATCH, BATCH),
        (BATCH, BATCH, dict.fromkeys(clusters, demand)),
    )(
        dict(indexes),
        {name: routes.storages[name] for name in clusters},
    )
    routes = routes._replace(storages={**routes.storages, **resolved})
    return new_indexes, routes, demands


def undo_moves(
    collection: EmbeddingCollection,
    indexes: Mapping[str, KeyIndex],
    demands: Mapping[str, Demand],
) -> tuple[dict[str, KeyIndex], jax.Array]:
    """Takes back what ``resolve_routes`` did to indexes for the last batch; must run
    under jit. Returns the largest number of keys without room in a directory, too."""

    def undo_all(indexes, changes):
        undone = {name: undo(indexes[name], *changes[name]) for name in indexes}
        left = jnp.concatenate([homeless for _, homeless in undone.values()])
        indexes = {name: index for name, (index, _) in undone.items()}
        return indexes, largest_over_devices(left)

    changes = {name: (demand.moves, demand.before) for name, demand in demands.items()}
    mapped = collection.map(undo_all, (BATCH, BATCH), (BATCH, PartitionSpec()))
    return mapped(dict(indexes), changes)
