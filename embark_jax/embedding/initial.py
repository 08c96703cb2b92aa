"""Initial values of tables; each device makes its own."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from embark_jax.embedding.keys import words_of
from embark_jax.plans.layout import Storage
from embark_jax.plans.plan import MESH_AXES

INIT_BLOCK_SLOTS = 8192
"""Slots initialised at a time, to bound temporaries."""


def initial_block(storage: Storage, key: jax.Array) -> jax.Array:
    """Returns this device's block of a storage, inside ``shard_map``; arguments are
    those of ``initial_rows``.

    Returns:
      ``[rows_per_device, width]`` of the storage's dtype, as the table's initializer
      and scale say; zeros in slots that hold no row.
    """
    slots, width = storage.rows_per_device, storage.width
    block_slots = min(INIT_BLOCK_SLOTS, slots)
    rows_of = initial_rows(storage, key)

    def fill(i, block):
        first = jnp.minimum(i * block_slots, slots - block_slots)
        values = rows_of(first + jnp.arange(block_slots, dtype=jnp.int32))
        values = values.astype(block.dtype)
        return lax.dynamic_update_slice(block, values, (first, jnp.zeros_like(first)))

    blocks = -(-slots // block_slots)
    return lax.fori_loop(0, blocks, fill, jnp.zeros((slots, width), storage.kind.dtype))


def initial_rows(storage: Storage, key: jax.Array) -> Callable[..., jax.Array]:
    """Returns a function from ``[n]`` int32 slots, if each row had one, to the initial
    rows ``[n, width]`` float32 of this device's block, inside ``shard_map``. For a
    cached storage it takes rows' keys instead, ``[n, 2]`` as in
    ``FeatureBlock.expand``.

    A value depends only on the random key and on its table, row (or key) and column,
    never on the plan.

    Args:
      storage: the storage.
      key: a JAX random key.
    """
    is_normal = any(t.initializer == "normal" for t in storage.tables.values())

    def value(row_low, row_high, column, seed, normal, scale):
        own_key = jax.random.fold_in(row_rng(key, row_low, row_high, seed), column)
        drawn = jax.random.uniform(own_key, (), jnp.float32, -1.0, 1.0)
        if is_normal:
            normal_value = jax.random.normal(own_key, (), jnp.float32)
            drawn = jnp.where(normal, normal_value, drawn)
        return drawn * scale

    by_column = jax.vmap(value, in_axes=(None, None, 0, None, None, None))
    by_row = jax.vmap(by_column)

    def rows_of(slot):
        row = locate(storage, slot)
        columns = row.column[:, None] + jnp.arange(storage.width, dtype=jnp.int32)[None]
        return by_row(row.low, row.high, columns, row.seed, row.normal, row.scale)

    return rows_of


def row_rng(key, row_low, row_high, seed) -> jax.Array:
    """Returns a random key of one row: of a random key, the low and high 32 bits of the
    row's number or key, and a table's seed."""
    row = jax.random.fold_in(jax.random.fold_in(key, seed), row_low)
    return jax.random.fold_in(row, row_high)


class Located(NamedTuple):
    """What lies in slots, ``[n]`` each.

    Attributes:
      low, high: uint32 words of the number, or key, of the row.
      column: int32 first of its columns.
      seed: int32 number of its table, a hash of its name.
      normal: bool: whether its initial values are normal.
      scale: float32 scale of these; zero where a slot holds no row.
    """

    low: jax.Array
    high: jax.Array
    column: jax.Array
    seed: jax.Array
    normal: jax.Array
    scale: jax.Array


def locate(storage: Storage, slot: jax.Array) -> Located:
    """Returns what lies in ``[n]`` int32 slots of this device's block, if each row had
    one; of a cached storage it takes keys, ``[n, 2]``. It runs in ``shard_map``."""
    shards = storage.shards
    shards = shards[np.lexsort((shards["first_slot"], shards["owner"]))]
    # Blocks of all devices behind each other: shards follow each other in the order
    # of their first slots.
    begin = shards["owner"] * storage.rows_per_device + shards["first_slot"]
    tables = [storage.tables[table] for table in shards["table"].tolist()]
    seeds = [zlib.crc32(table.name.encode()) >> 1 for table in tables]
    normal = np.array([table.initializer == "normal" for table in tables])
    scales = np.array([table.scale for table in tables], np.float32)
    with jax.enable_x64(True):
        words = slot
        if storage.dynamic:  # a device has one shard of it
            slot = jnp.zeros(len(words), jnp.int64)
        elif storage.cached:
            slot = lax.bitcast_convert_type(words, jnp.int64)
        place = slot.astype(jnp.int64)
        if not storage.replicated:
            place += lax.axis_index(MESH_AXES).astype(jnp.int64) * np.int64(
                storage.rows_per_device
            )
        shard = jnp.searchsorted(jnp.asarray(begin), place, side="right") - 1

        def of_shard(values: np.ndarray) -> jax.Array:
            return jnp.asarray(values)[jnp.maximum(shard, 0)]

        local_row = place - of_shard(begin)
        if not storage.dynamic:
            first_row, stride = map(of_shard, (shards["first_row"], shards["stride"]))
            words = words_of(first_row + local_row * stride)
        held = (shard >= 0) & (local_row < of_shard(shards["rows"]))
        return Located(
            words[:, 0],
            words[:, 1],
            of_shard(shards["first_column"].astype(np.int32)),
            of_shard(np.array(seeds, np.int32)),
            of_shard(normal),
            jnp.where(held, of_shard(scales), jnp.float32(0)),
        )
