"""Cached tables on the devices: routes of keys become routes of slots, and rows move.

A cached storage has fewer slots than its tables have rows. Up to the exchange of ids,
every row counts as if it had a slot: a key is the row's number in its owner's block.
Then the owner resolves keys: its key index says in which slot each row lies, or will
lie. Which rows move depends on ids alone; a swap moves them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from embark_kernels import group_rows
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from embark_jax.cache.key_index import (
    KeyIndex,
    Moves,
    Resolved,
    default_buckets,
    empty_index,
    rehash,
    resolve,
)
from embark_jax.embedding.arrays import (
    BATCH,
    MICRO_BATCHES,
    OptimizerState,
    Routes,
    Storages,
)
from embark_jax.embedding.cluster import Route, ShardedCluster, pick
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.exchange import largest_over_devices, sum_over_devices
from embark_jax.embedding.initial import initial_rows
from embark_jax.embedding.rules import AnyRule, rule_of
from embark_jax.plans.storage import Storage

WORDS = 1
"""Words of a key, which is a row's number in a block."""


INITIAL_ROWS_AT_ONCE = 1024
"""Initial rows that a swap computes at once, to bound temporaries."""


class Demand(NamedTuple):
    """The demand of a batch on one cached storage.

    Attributes:
      moves: moves on each device.
      largest: ``[3]`` int32 maximum over devices of the rows that come, the slots that
        the batch needs, and the keys without room in the directory.
      rows: ``[2]`` int32 numbers over all devices: rows that are asked for, and those
        of them that had no slot.
    """

    moves: Moves
    largest: jax.Array
    rows: jax.Array


class Incoming(NamedTuple):
    """The rows that come into the slots of one cached storage.

    Attributes:
      rows: ``[devices * n, values]`` float32 values as in ``row_values``.
      fresh: ``[devices * n]`` bool: rows that take their initial value instead.
      words: ``[devices * n, 2]`` uint32 low and high bits of the keys of a dynamic
        table.
    """

    rows: jax.Array
    fresh: jax.Array
    words: jax.Array


def init_indexes(collection: EmbeddingCollection) -> dict[str, KeyIndex]:
    """Creates key indexes of the cached storages, without keys; sharded like those."""
    storages = collection.cached

    def create():
        return {
            name: empty_index(storage.slots_per_device, WORDS)
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
    micro_batches: int = 1,
) -> tuple[dict[str, KeyIndex], Routes, dict[str, Demand]]:
    """Lets owners say in which slots the rows of a batch lie; must run under jit.

    Args:
      collection: the embedding tables.
      indexes: indexes before the batch.
      routes: result of ``EmbeddingCollection.route``; several micro-batches lie along a
        first axis.
      micro_batches: number of micro-batches.

    Returns:
      The indexes, the routes that lookups and updates take once the rows have moved,
      and the moves.
    """
    cached = collection.cached
    clusters = {n: cast(ShardedCluster, collection.clusters[n]) for n in cached}

    def resolve_all(indexes, routes):
        demands = {}
        for name, cluster in clusters.items():
            routes[name], resolved = _resolve_route(
                cluster, routes[name], indexes[name], micro_batches > 1
            )
            indexes[name] = resolved.index
            demand_sizes = jnp.concatenate(
                [resolved.moves.count, resolved.needed, resolved.homeless]
            )
            rows = jnp.concatenate([resolved.needed, resolved.moves.count])
            demands[name] = Demand(
                resolved.moves,
                largest_over_devices(demand_sizes),
                sum_over_devices(rows),
            )
        return indexes, routes, demands

    batch = BATCH if micro_batches == 1 else MICRO_BATCHES
    demand = Demand(BATCH, PartitionSpec(), PartitionSpec())  # pyright: ignore
    new_indexes, resolved, demands = collection.map(
        resolve_all, (BATCH, batch), (BATCH, batch, dict.fromkeys(clusters, demand))
    )(dict(indexes), {name: routes.storages[name] for name in clusters})
    routes = routes._replace(storages={**routes.storages, **resolved})
    return new_indexes, routes, demands


def _resolve_route(
    cluster: ShardedCluster, route: Route, index: KeyIndex, several: bool
) -> tuple[Route, Resolved]:
    rows, touched = cluster.index.slots, cluster.touched(route)
    keys, group = touched, None
    if several:  # the slots must hold what all of them touch
        groups = group_rows(
            touched.reshape(-1), rows, implementation=cluster.implementation
        )
        keys, group = groups.row, groups.group.reshape(touched.shape)
    present = keys < rows
    evict = cluster.index.storage.kind.evict
    resolved = resolve(index, keys[:, None].astype(jnp.uint32), present, evict)
    slot = jnp.where(present, resolved.slot, keys)
    if group is None:
        return cluster.with_slots(route, slot), resolved
    slot = jnp.where(touched < rows, pick(slot, group), touched)
    return jax.vmap(cluster.with_slots)(route, slot), resolved


def row_values(optimizer: AnyRule, storage: Storage) -> dict[str, slice]:
    """Returns the slice of each value in a row that moves: its states by name, and its
    parameters by the name ""."""
    states = rule_of(optimizer, storage).state_widths(storage.width)
    slices, begin = {}, 0
    for name, size in {"": storage.width, **states}.items():
        slices[name] = slice(begin, begin + size)
        begin += size
    return slices


def initial_values(
    collection: EmbeddingCollection,
    storage: Storage,
    optimizer: AnyRule,
    key: jax.Array,
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Returns a function from numbers in a device's block, ``[n]`` int32, and ``words``
    as in ``Incoming`` to all values of rows that no batch has asked for yet; it runs in
    ``shard_map``. ``key`` is that of ``EmbeddingCollection.init``."""
    rows_of = initial_rows(storage, key, collection.hot_keys)
    rule = rule_of(optimizer, storage)
    states = sum(rule.state_widths(storage.width).values())

    def values(numbers, words):
        count, size = len(numbers), min(INITIAL_ROWS_AT_ONCE, len(numbers))

        def fill(i, rows):
            first = jnp.minimum(i * size, count - size)
            some = lax.dynamic_slice_in_dim(numbers, first, size)
            keys = lax.dynamic_slice_in_dim(words, first, size)
            new = rows_of(some, keys if storage.kind.table else None)
            return lax.dynamic_update_slice_in_dim(rows, new, first, axis=0)

        rows = jnp.zeros((count, storage.width), jnp.float32)
        rows = lax.fori_loop(0, -(-count // size), fill, rows)
        state = jnp.full((count, states), rule.initial_state)
        return jnp.concatenate([rows, state], axis=1)

    return values


def make_take(collection: EmbeddingCollection, optimizer: AnyRule) -> Callable:
    """Makes a jitted ``(storages, state, moves, incoming) -> rows`` that copies the
    rows that leave their slots, by storage name.

    To take rows and to put others into their place are two programs: in one that reads
    and writes the same array, XLA copies all of the array on CPU.
    """

    def take(storages, state, moves, incoming):
        outgoing = {}
        for name, (slot, *_) in moves.items():
            arrays = {"": storages[name], **state[name]}
            slot = slot[: len(incoming[name].rows)]
            values = row_values(optimizer, cached[name])
            outgoing[name] = jnp.concatenate(
                [pick(arrays[n], slot) for n in values], axis=1
            )
        return outgoing

    cached = collection.cached
    names = list(cached)
    mapped = collection.map(take, (BATCH,) * 4, BATCH)

    def take_cached(storages: Storages, state: OptimizerState, moves, incoming):
        return mapped(
            {n: storages[n] for n in names},
            {n: state[n] for n in names},
            moves,
            incoming,
        )

    outgoing = dict.fromkeys(names, NamedSharding(collection.mesh, BATCH))
    return jax.jit(take_cached, out_shardings=outgoing)


def make_put(collection: EmbeddingCollection, optimizer: AnyRule) -> Callable:
    """Makes a jitted ``(storages, state, key, moves, incoming) -> (storages, state)``
    that puts rows into slots; storages and state are donated.

    ``key`` is that of ``EmbeddingCollection.init``; ``moves`` and ``incoming`` are by
    storage name, and ``incoming`` has room for all rows that move.
    """

    def put(storages, state, key, moves, incoming):
        for name, (slot, numbers, *_) in moves.items():
            values = row_values(optimizer, cached[name])
            arrays = {"": storages[name], **state[name]}
            rows, fresh, words = incoming[name]
            slot, numbers = slot[: len(rows)], numbers[: len(rows), 0]
            initial = initial_values(collection, cached[name], optimizer, key)
            rows = lax.cond(
                fresh.any(),
                lambda rows, fresh, numbers, words, initial=initial: jnp.where(
                    fresh[:, None], initial(numbers.astype(jnp.int32), words), rows
                ),
                lambda rows, *_: rows,
                rows,
                fresh,
                numbers,
                words,
            )
            arrays = {
                n: arrays[n].at[slot].set(rows[:, columns], mode="drop")
                for n, columns in values.items()
            }
            storages[name] = arrays.pop("")
            state[name] = arrays
        return storages, state

    cached = collection.cached
    names, everywhere = list(cached), PartitionSpec()
    mapped = collection.map(put, (BATCH, BATCH, everywhere, BATCH, BATCH), BATCH)

    def put_cached(storages: Storages, state: OptimizerState, key, moves, incoming):
        some = {n: storages[n] for n in names}, {n: state[n] for n in names}
        moved, moved_state = mapped(*some, key, moves, incoming)
        return {**storages, **moved}, {**state, **moved_state}

    return jax.jit(
        put_cached,
        out_shardings=(collection.shardings, collection.state_shardings(optimizer)),
        donate_argnums=(0, 1),
    )
