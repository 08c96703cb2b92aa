"""Initial values of tables; each device makes its own."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from embark_jax.embedding.indexing import ids_of
from embark_jax.embedding.keys import words_of
from embark_jax.plans.plan import MESH_AXES
from embark_jax.plans.storage import Storage

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
    cached storage it takes rows' keys as in ``Block.expand`` instead, ``[n, 2]``.

    A value depends only on the random key and on its table, row (or key) and column,
    never on the plan.

    Args:
      storage: the storage.
      key: a JAX random key.
    """
    shards = ShardsByDevice(storage)

    def value(row_low, row_high, column, seed, normal, scale):
        cell = cell_of(key, row_low, row_high, column, seed)
        drawn = _uniform(cell)
        if shards.normal.any():
            drawn = jnp.where(normal, jax.random.normal(cell, (), jnp.float32), drawn)
        return drawn * scale

    by_column = jax.vmap(value, in_axes=(None, None, 0, None, None, None))
    by_row = jax.vmap(by_column, in_axes=(0, 0, 0, 0, 0, 0))

    def rows_of(slot):
        row_low, row_high, column, seed, normal, scale = shards.locate(slot)
        columns = jnp.arange(storage.width, dtype=jnp.int32)
        columns = column[:, None] + columns[None]
        return by_row(row_low, row_high, columns, seed, normal, scale)

    return rows_of


def table_seed(name: str) -> int:
    """Returns the number of a table that its initial values depend on."""
    return zlib.crc32(name.encode()) >> 1


def cell_of(key, row_low, row_high, column, seed) -> jax.Array:
    """Returns a random key of one value: of a random key, the low and high 32 bits of a
    row's number or key, a column, and a table's seed."""
    cell = jax.random.fold_in(jax.random.fold_in(key, seed), row_low)
    return jax.random.fold_in(jax.random.fold_in(cell, row_high), column)


def _uniform(cell: jax.Array) -> jax.Array:
    return jax.random.uniform(cell, (), jnp.float32, -1.0, 1.0)


class ShardsByDevice:
    """The shards of each device in the order of their slots, as small arrays."""

    def __init__(self, storage: Storage):
        shards: dict[int, list[tuple]] = {}
        for rows in storage.ranges:
            first_slots = storage.first_slots[rows.table.name]
            owners = storage.owners(rows.table.name)
            for (j, k), owner in np.ndenumerate(owners):
                shards.setdefault(int(owner), []).append(
                    (
                        first_slots[j, k],
                        rows.shard_rows(j),
                        j,
                        rows.row_shards,
                        rows.begin,
                        k * rows.width,
                        table_seed(rows.table.name),
                        rows.table.initializer == "normal",
                        rows.table.scale,
                    )
                )
        max_shards = max(map(len, shards.values()))
        devices = 1 if storage.replicated else max(shards) + 1
        # After a device's last shard: one that begins after all slots.
        nothing = (storage.rows_per_device, 0, 0, 1, 0, 0, 0, 0, 0.0)
        table = [
            sorted(shards.get(d, []))
            + [nothing] * (max_shards - len(shards.get(d, [])))
            for d in range(devices)
        ]
        self._by_key = bool(storage.kind.table)
        columns = np.array(table, np.float64).transpose(2, 0, 1)
        *integers, self.scale = columns
        (
            self.first_slot,
            self.rows,
            self.row_shard,
            self.row_shards,
            self.begin,
            self.column,
            self.seed,
            self.normal,
        ) = (column.astype(np.int64) for column in integers)

    def locate(self, slot: jax.Array) -> tuple[jax.Array, ...]:
        """Returns ``(row's low and high 32 bits, first column, seed, whether values are
        normal, scale)`` of this device's slots; the scale is zero where a slot holds no
        row. In place of slots it takes keys of a cached storage, ``[n, 2]``."""
        keys = slot if slot.ndim == 2 else None
        with jax.enable_x64(True):
            if keys is not None:
                slot = lax.bitcast_convert_type(keys, jnp.int64)
            if self._by_key:
                slot = jnp.zeros_like(slot)
            devices = self.first_slot.shape[0]
            # A device past the last owner owns nothing; its values are scaled to zero.
            device = lax.axis_index(MESH_AXES) if devices > 1 else 0
            owns = (device < devices) | (devices == 1)
            device = jnp.minimum(device, devices - 1)

            def of_device(values):
                return jnp.asarray(values)[device]

            first_slot = of_device(self.first_slot)
            shard = jnp.searchsorted(first_slot, slot, side="right") - 1
            local_row = slot - first_slot[shard]
            held = owns & (local_row < of_device(self.rows)[shard])
            row = of_device(self.begin)[shard] + ids_of(
                of_device(self.row_shard)[shard],
                local_row,
                of_device(self.row_shards)[shard],
            )
            scale = of_device(self.scale.astype(np.float32))[shard]
            words = words_of(row) if not self._by_key else keys
            return (
                words[:, 0],
                words[:, 1],
                of_device(self.column)[shard].astype(jnp.int32),
                of_device(self.seed)[shard].astype(jnp.int32),
                of_device(self.normal)[shard] > 0,
                jnp.where(held, scale, jnp.float32(0.0)),
            )
