"""Rows of cached tables come into slots, and others leave them.

A swap follows the moves that ``resolving`` gives, before the step of their batch. A row
travels, and is stored, as 32-bit words: one for each float32 value, or for two of 16
bits. They are float32 to NumPy and JAX, and nobody computes with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from embark_jax.embedding.arrays import BATCH, OptimizerState, Storages
from embark_jax.embedding.cluster import pick
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.initial import initial_rows
from embark_jax.embedding.rules import AnyRule, rule_of
from embark_jax.plans.storage import Storage
from embark_jax.plans.wire import VALUE_BYTES

A = TypeVar("A", jax.Array, np.ndarray)

WORD_BYTES = 4
INITIAL_ROWS_AT_ONCE = 1024
"""Initial rows that a swap computes at once, to bound temporaries."""


class Incoming(NamedTuple):
    """The rows that come into the slots of one cached storage.

    Attributes:
      rows: ``[devices * n, words]`` float32 words as in ``row_words``.
      fresh: ``[devices * n]`` bool: rows that take their initial value instead.
    """

    rows: jax.Array
    fresh: jax.Array


def row_words(optimizer: AnyRule, storage: Storage) -> dict[str, slice]:
    """Returns the words of each value in a row that moves: its states by name, and its
    parameters by the name ""."""
    states = rule_of(optimizer, storage).state_widths(storage.width)
    per_word = WORD_BYTES // VALUE_BYTES[storage.kind.dtype]
    slices, begin = {}, 0
    for name, size in {"": -(-storage.width // per_word), **states}.items():
        slices[name] = slice(begin, begin + size)
        begin += size
    return slices


def to_words(values: A) -> A:
    """Returns ``[n, width]`` values, of JAX or NumPy, as ``[n, words]``."""
    if values.dtype == np.float32:
        return values
    pad: Any = np.pad if isinstance(values, np.ndarray) else jnp.pad
    return pad(values, ((0, 0), (0, values.shape[1] % 2))).view(np.float32)


def from_words(words: jax.Array, like: jax.Array) -> jax.Array:
    """Returns the values of ``to_words``, of the type and width of an array."""
    return words.view(like.dtype)[:, : like.shape[1]]


def initial_values(
    collection: EmbeddingCollection,
    storage: Storage,
    optimizer: AnyRule,
    key: jax.Array,
) -> Callable[[jax.Array], jax.Array]:
    """Returns a function from keys as in ``KeyIndex``, ``[n, words]``, to the words of
    rows that no batch has asked for yet; it runs in ``shard_map``. ``key`` is that of
    ``EmbeddingCollection.init``."""
    rows_of = initial_rows(storage, key)
    rule = rule_of(optimizer, storage)
    states = sum(rule.state_widths(storage.width).values())

    def values(keys):
        count, size = len(keys), min(INITIAL_ROWS_AT_ONCE, len(keys))

        def fill(i, rows):
            first = jnp.minimum(i * size, count - size)
            some = lax.dynamic_slice_in_dim(keys, first, size)
            new = rows_of(some).astype(rows.dtype)
            return lax.dynamic_update_slice_in_dim(rows, new, first, axis=0)

        rows = jnp.zeros((count, storage.width), storage.kind.dtype)
        rows = lax.fori_loop(0, -(-count // size), fill, rows)
        state = jnp.full((count, states), rule.initial_state)
        return jnp.concatenate([to_words(rows), state], axis=1)

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
            words = row_words(optimizer, cached[name])
            outgoing[name] = jnp.concatenate(
                [to_words(pick(arrays[n], slot)) for n in words], axis=1
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
        for name, (slot, keys, *_) in moves.items():
            words = row_words(optimizer, cached[name])
            arrays = {"": storages[name], **state[name]}
            rows, fresh = incoming[name]
            slot, keys = slot[: len(rows)], keys[: len(rows)]
            initial = initial_values(collection, cached[name], optimizer, key)
            rows = lax.cond(
                fresh.any(),
                lambda rows, fresh, keys, initial=initial: jnp.where(
                    fresh[:, None], initial(keys), rows
                ),
                lambda rows, *_: rows,
                rows,
                fresh,
                keys,
            )
            for n, columns in words.items():
                values = from_words(rows[:, columns], arrays[n])
                arrays[n] = arrays[n].at[slot].set(values, mode="drop")
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
