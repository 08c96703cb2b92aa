"""Between storages and logical tables: export and load.

A table's logical rows are ``0..rows``, whatever the plan and the fleet; checkpoints
hold them. On the way, device d keeps the d-th equal part of a logical table, in host
memory: rows move in chunks, so that the devices never hold a second copy of a table.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from embark_jax.embedding.collection import BATCH, EmbeddingCollection
from embark_jax.embedding.positions import find
from embark_jax.planner import MESH_AXES, Placement, Storage

CHUNK_BYTES = 64 << 20
"""Of rows in flight on a device, for all devices together."""
HOST_MEMORY = "pinned_host"


class _Shards(NamedTuple):
    """Where a table lies in its storage, as arrays: one program serves all tables.

    Attributes:
      owner, first_slot: ``[row_shards, column_shards]`` int32, padded to the storage's
        largest number of row shards.
      rows, row_shards, part: ``[]`` int64 rows and row shards of the table, and the
        logical rows that each device keeps.
    """

    owner: np.ndarray
    first_slot: np.ndarray
    rows: np.int64
    row_shards: np.int64
    part: np.int64


def logical_shape(placement: Placement, devices: int, width: int) -> tuple[int, int]:
    """Shape of an exported array: rows padded with zeros to a multiple of devices."""
    return -(-placement.table.rows // devices) * devices, width


def logical_sharding(collection: EmbeddingCollection) -> NamedSharding:
    """Equal parts of the rows for all devices, in host memory."""
    return NamedSharding(collection.mesh, BATCH, memory_kind=HOST_MEMORY)


def export_array(
    collection: EmbeddingCollection, table: str, array: jax.Array
) -> jax.Array:
    """The logical rows of a table, out of its storage or an optimizer state of it.

    Args:
      collection: that the array belongs to.
      table: name of the table.
      array: ``[slots, width]`` of the table's storage; ``[slots, 1]`` of a state with
        one value a row.

    Returns:
      ``[rows, dim]`` or ``[rows, 1]``, shaped and sharded as ``logical_shape`` and
      ``logical_sharding`` say.
    """
    storage, placement = _find(collection, table)
    row_wise = array.shape[1] != storage.width
    width = 1 if row_wise else placement.table.dim
    devices = collection.plan.devices
    shape = logical_shape(placement, devices, width)
    part = shape[0] // devices
    chunk_rows = _chunk_rows(part, devices, placement.table.dim)
    step = _program("export", collection, storage, placement, chunk_rows, row_wise)
    sharding = logical_sharding(collection)
    local = {
        d: np.empty((part, width), array.dtype) for d in sharding.addressable_devices
    }
    with jax.enable_x64(True):
        for first in range(0, part, chunk_rows):
            rows = step(array, _shards(storage, placement, part), np.int64(first))
            for shard in rows.addressable_shards:
                keep = min(chunk_rows, part - first)
                rows_here = np.asarray(shard.data)
                local[shard.device][first : first + keep] = rows_here[:keep]
    arrays = [
        jax.device_put(
            value, jax.sharding.SingleDeviceSharding(d, memory_kind=HOST_MEMORY)
        )
        for d, value in local.items()
    ]
    return jax.make_array_from_single_device_arrays(shape, sharding, arrays)


def load_array(
    collection: EmbeddingCollection, table: str, array: jax.Array, logical: jax.Array
) -> jax.Array:
    """Puts logical rows into a storage or an optimizer state; undoes ``export_array``.

    Args:
      collection: that the array belongs to.
      table: name of the table.
      array: as for ``export_array``; donated.
      logical: as ``export_array`` returns it.

    Returns:
      The array with the table's rows replaced.
    """
    storage, placement = _find(collection, table)
    row_wise = array.shape[1] != storage.width
    devices = collection.plan.devices
    part = logical.shape[0] // devices
    chunk_rows = _chunk_rows(part, devices, placement.table.dim)
    step = _program("load", collection, storage, placement, chunk_rows, row_wise)
    sharding = NamedSharding(collection.mesh, BATCH)
    with jax.enable_x64(True):
        for first in range(0, part, chunk_rows):
            pieces = []
            for shard in logical.addressable_shards:
                rows = np.asarray(shard.data)[first : first + chunk_rows]
                padded = np.pad(rows, ((0, chunk_rows - len(rows)), (0, 0)))
                pieces.append(jax.device_put(padded, shard.device))
            shape = (chunk_rows * devices, logical.shape[1])
            chunk = jax.make_array_from_single_device_arrays(shape, sharding, pieces)
            where = _shards(storage, placement, part)
            array = step(array, chunk, where, np.int64(first))
    return array


def export_table(
    collection: EmbeddingCollection, storages: dict[str, jax.Array], table: str
) -> np.ndarray:
    """``[rows, dim]`` of a table in NumPy, where one process sees all devices."""
    storage, placement = _find(collection, table)
    logical = export_array(collection, table, storages[storage.name])
    return np.asarray(logical)[: placement.table.rows]


def _find(collection: EmbeddingCollection, table: str) -> tuple[Storage, Placement]:
    for storage in collection.plan.storages:
        for placement in storage.placements:
            if placement.table.name == table:
                return storage, placement
    raise ValueError(
        f"no table {table!r}; there are "
        f"{', '.join(t.name for t in collection.plan.tables)}"
    )


def _chunk_rows(part: int, devices: int, dim: int) -> int:
    """A power of two, so that tables of different sizes share compiled programs."""
    limit = max(1, CHUNK_BYTES // (devices * dim * 4))
    return 1 << min(limit.bit_length() - 1, (part - 1).bit_length())


def _shards(storage: Storage, placement: Placement, part: int) -> _Shards:
    name = placement.table.name
    most = max(each.row_shards for each in storage.placements)
    padding = ((0, most - placement.row_shards), (0, 0))
    return _Shards(
        np.pad(storage.owners(name), padding).astype(np.int32),
        np.pad(storage.first_slots[name], padding).astype(np.int32),
        np.int64(placement.table.rows),
        np.int64(placement.row_shards),
        np.int64(part),
    )


def _program(
    kind: str,
    collection: EmbeddingCollection,
    storage: Storage,
    placement: Placement,
    chunk_rows: int,
    row_wise: bool,
):
    spec = collection.shardings[storage.name].spec
    return _compiled(
        kind,
        collection.mesh,
        spec,
        storage.slots_per_device,
        placement.column_shards,
        chunk_rows,
        row_wise,
    )


@functools.lru_cache(maxsize=256)
def _compiled(
    kind: str,
    mesh: jax.sharding.Mesh,
    spec: PartitionSpec,
    slots: int,
    column_shards: int,
    chunk_rows: int,
    row_wise: bool,
):
    """The jitted step that moves one chunk; equal for all tables of a shape."""
    devices = mesh.devices.size
    replicated = spec == PartitionSpec()

    def rows_of_chunk(shards: _Shards, first: jax.Array) -> jax.Array:
        """``[devices * chunk_rows]`` logical rows; ``rows`` where there is none."""
        within = first + jnp.arange(chunk_rows, dtype=jnp.int64)[None]
        row = jnp.arange(devices, dtype=jnp.int64)[:, None] * shards.part + within
        exists = (within < shards.part) & (row < shards.rows)
        return jnp.where(exists, row, shards.rows).reshape(-1)

    def slots_of_rows(shards: _Shards, row: jax.Array, k: int) -> jax.Array:
        """``[rows]`` slot on this device; out of range where another holds the row."""
        found = find(row, shards.row_shards)
        row_shard, local_row = (each.astype(jnp.int32) for each in found)
        held = row < shards.rows
        if not replicated:
            held &= shards.owner[row_shard, k] == lax.axis_index(MESH_AXES)
        return jnp.where(held, shards.first_slot[row_shard, k] + local_row, slots)

    def export(block, shards, first):
        row = rows_of_chunk(shards, first)
        parts = [
            block.at[slots_of_rows(shards, row, k)].get(mode="fill", fill_value=0)
            for k in range(1 if row_wise else column_shards)
        ]
        rows = jnp.concatenate(parts, axis=1)
        if replicated:
            mine = lax.axis_index(MESH_AXES) * chunk_rows
            return lax.dynamic_slice_in_dim(rows, mine, chunk_rows)
        # Each row has one owner: adding the others' zeros is exact.
        return lax.psum_scatter(rows, MESH_AXES, scatter_dimension=0, tiled=True)

    def load(block, chunk, shards, first):
        row = rows_of_chunk(shards, first)
        rows = lax.all_gather(chunk, MESH_AXES, axis=0, tiled=True)
        width = block.shape[1]
        for k in range(column_shards):
            part = rows if row_wise else rows[:, k * width : (k + 1) * width]
            block = block.at[slots_of_rows(shards, row, k)].set(part, mode="drop")
        return block

    none = PartitionSpec()
    if kind == "export":
        function, in_specs, out_specs = export, (spec, none, none), BATCH
    else:
        function, in_specs, out_specs = load, (spec, BATCH, none, none), spec
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )
    return jax.jit(mapped, donate_argnums=() if kind == "export" else (0,))
