"""Rows of cached tables come into slots, and others leave them.

A swap follows the moves that ``resolving`` gives, before the step of their batch. A row
travels, and is stored, as 32-bit words: one for each float32 value, or for two of 16
bits. They are float32 to NumPy and JAX, and nobody computes with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from embark_jax.embedding.cluster import pick
from embark_jax.embedding.collection import BATCH, EmbeddingCollection, TableState
from embark_jax.embedding.initial import initial_rows
from embark_jax.embedding.rules import AnyRule, rule_of
from embark_jax.plans.layout import Storage
from embark_jax.plans.wire import VALUE_BYTES

A = TypeVar("A", jax.Array, np.ndarray)
Values = dict[str, Any]
"""The arrays of a storage: its parameters by the name "", and its states."""

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


def values_of(tables: TableState, name: str) -> Values:
    """Returns the arrays of a storage."""
    return {"": tables.storages[name], **tables.optimizer[name]}


def with_values(tables: TableState, values: Mapping[str, Values]) -> TableState:
    """Returns the tables with other arrays of some storages."""
    storages, states = dict(tables.storages), dict(tables.optimizer)
    for name, arrays in values.items():
        storages[name] = arrays[""]
        states[name] = {value: array for value, array in arrays.items() if value}
    return TableState(storages, states)


def row_words(optimizer: AnyRule, storage: Storage) -> dict[str, slice]:
    """Returns the words of each value in a row that moves, by the names of
    ``Values``."""
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
    storage: Storage, optimizer: AnyRule, key: jax.Array
) -> Callable[[jax.Array], jax.Array]:
    """Returns a function from keys, ``[n, 2]``, to the words of rows that no batch has
    asked for yet; it runs in ``shard_map``. ``key`` is that of
    ``EmbeddingCollection.init``."""
    rows_of = initial_rows(storage, key)
    rule = rule_of(optimizer, storage)
    states = sum(rule.state_widths(storage.width).values())

    def values(keys):
        count, size = len(keys), min(INITIAL_ROWS_AT_ONCE, len(keys))

        def compute(i, rows):
            first = jnp.minimum(i * size, count - size)
            some = lax.dynamic_slice_in_dim(keys, first, size)
            new = rows_of(some).astype(rows.dtype)
            return lax.dynamic_update_slice_in_dim(rows, new, first, axis=0)

        rows = jnp.zeros((count, storage.width), storage.kind.dtype)
        rows = lax.fori_loop(0, -(-count // size), compute, rows)
        state = jnp.full((count, states), rule.initial_state)
        return jnp.concatenate([to_words(rows), state], axis=1)

    return values


def make_gather(collection: EmbeddingCollection, optimizer: AnyRule) -> Callable:
    """Makes a jitted ``(values, moves, incoming) -> rows`` that copies the rows that
    leave their slots; all are by the name of a cached storage.

    To read rows and to write others into their place are two programs: in one that
    reads and writes the same array, XLA copies all of the array on CPU.
    """
    cached = collection.cached

    def gather(values, moves, incoming):
        outgoing = {}
        for name, storage_moves in moves.items():
            slot = storage_moves.slot[: len(incoming[name].rows)]
            words = row_words(optimizer, cached[name])
            outgoing[name] = jnp.concatenate(
                [to_words(pick(values[name][value], slot)) for value in words], axis=1
            )
        return outgoing

    return jax.jit(collection.map(gather, (BATCH,) * 3, BATCH))


def make_scatter(collection: EmbeddingCollection, optimizer: AnyRule) -> Callable:
    """Makes a jitted ``(values, key, moves, incoming) -> values`` that puts rows into
    slots; the values are donated.

    ``key`` is that of ``EmbeddingCollection.init``; all others are by the name of a
    cached storage, and ``incoming`` has room for all rows that move.
    """
    cached = collection.cached

    def scatter(values, key, moves, incoming):
        for name, storage_moves in moves.items():
            rows, fresh = incoming[name]
            slot = storage_moves.slot[: len(rows)]
            keys = storage_moves.incoming[: len(rows)]
            initial = initial_values(cached[name], optimizer, key)
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
            for value, words in row_words(optimizer, cached[name]).items():
                array = values[name][value]
                new = from_words(rows[:, words], array)
                values[name][value] = array.at[slot].set(new, mode="drop")
        return values

    mapped = collection.map(scatter, (BATCH, PartitionSpec(), BATCH, BATCH), BATCH)
    shardings = {
        name: dict.fromkeys(row_words(optimizer, storage), collection.shardings[name])
        for name, storage in cached.items()
    }
    return jax.jit(mapped, out_shardings=shardings, donate_argnums=0)
