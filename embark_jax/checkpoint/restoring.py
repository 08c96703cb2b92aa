"""Puts the arrays of a checkpoint onto devices, piece by piece.

If this plan lays out a storage as the one that wrote it did, the bytes are copied
unchanged. Else each table goes through host memory, some thousands of its rows at a
time, out of the shards that hold them and into those that will. Either way existing
arrays are overwritten in place.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from embark_jax.cache.stored_array import StoredArray
from embark_jax.checkpoint.errors import CheckpointError
from embark_jax.checkpoint.manifest import Block, Manifest
from embark_jax.checkpoint.reading import READ_BYTES, SavedCheckpoint, pieces
from embark_jax.embedding.logical import RangeLayout, TableLayout

OVERWRITTEN_BYTES = 1 << 20
"""Bytes of a device's array that are overwritten at a time."""


def restore_tables(
    saved: SavedCheckpoint,
    arrays: dict[str, Any],
    tables: Mapping[str, TableLayout],
) -> None:
    """Puts the rows of a checkpoint into storages and optimizer states.

    Args:
      saved: the checkpoint.
      arrays: arrays by name in the state. They are overwritten, and others in their
        place.
      tables: layouts of the tables in these arrays.

    Raises:
      CheckpointError: if the checkpoint is damaged; the arrays then have some of its
        rows, and may be given again.
    """
    for name, array in arrays.items():
        blocks = _Blocks(array)
        try:
            if _laid_out_alike(saved.manifest, name, array, tables):
                _copy_straight(saved, name, blocks)
            else:
                for table, rows in _of_storage(tables, name).items():
                    _copy_rows(saved, name, table, rows, blocks)
        finally:
            arrays[name] = blocks.array()


def restore_array(saved: SavedCheckpoint, name: str, like: jax.Array) -> jax.Array:
    """Restores an array of the dense state, or random keys, sharded like ``like``.

    Raises:
      CheckpointError: if the saved array has another shape, or is damaged.
    """
    is_key = jnp.issubdtype(like.dtype, jax.dtypes.prng_key)
    data = jax.random.key_data(like) if is_key else like
    value = saved.array(name)
    if (value.shape, value.dtype) != (data.shape, data.dtype):
        raise CheckpointError(
            f"{name} is {value.dtype}{list(value.shape)} in the checkpoint, "
            f"{data.dtype}{list(data.shape)} here"
        )
    found = jax.make_array_from_callback(
        data.shape, data.sharding, lambda index: value[index]
    )
    if is_key:
        impl = saved.find(name).key
        return jax.jit(
            lambda data: jax.random.wrap_key_data(data, impl=impl),
            out_shardings=like.sharding,
        )(found)
    return found


class _Found(NamedTuple):
    """Rows on their way to devices.

    Attributes:
      buffer: buffer that holds them.
      parts: consecutive rows of an array, and the number of the first.
    """

    buffer: np.ndarray
    parts: list[tuple[int, np.ndarray]]


class _Block(NamedTuple):
    """Rows of an array on one device: ``data``, from ``begin`` on; for a
    ``StoredArray`` they are in host memory."""

    begin: int
    data: jax.Array | np.ndarray


class _Blocks:
    """The blocks of an array on the devices of this process, being overwritten."""

    def __init__(self, array: jax.Array | StoredArray):
        self._whole = array
        self._like = jax.ShapeDtypeStruct(
            array.shape, array.dtype, sharding=array.sharding
        )
        self.width = array.shape[1]
        self.row_bytes = self.width * array.dtype.itemsize
        self._blocks = [
            _Block(shard.index[0].start or 0, shard.data)
            for shard in array.addressable_shards
        ]

    @property
    def ranges(self) -> list[range]:
        """The rows that this process has, each once."""
        found = {(begin, len(data)) for begin, data in self._blocks}
        return [range(begin, begin + count) for begin, count in sorted(found)]

    def rows_in(self, buffer: np.ndarray, count: int, width: int) -> np.ndarray:
        """Returns ``[count, width]`` at the beginning of a buffer."""
        dtype = np.dtype(self._like.dtype)
        size = count * width * dtype.itemsize
        return buffer[:size].view(dtype).reshape(count, width)

    def have(self, row: int) -> bool:
        return any(row in each for each in self.ranges)

    def put(self, first: int, rows: np.ndarray) -> None:
        """Overwrites rows, wherever this process has them."""
        for number, (begin, data) in enumerate(self._blocks):
            if not begin <= first < begin + len(data):
                continue
            if isinstance(data, np.ndarray):
                data[first - begin :][: len(rows)] = rows
                continue
            # Few sizes, so that few programs are compiled: the last part overlaps.
            most = max(1, OVERWRITTEN_BYTES // self.row_bytes)
            size = 1 << min(len(rows), most).bit_length() - 1
            for start in [*range(0, len(rows) - size, size), len(rows) - size]:
                part = jax.device_put(
                    rows[start : start + size], data.device, may_alias=True
                )
                data = _overwrite(data, part, np.int32(first - begin + start))
            # The rows' memory is used again.
            self._blocks[number] = _Block(begin, data.block_until_ready())

    def array(self) -> jax.Array | StoredArray:
        if isinstance(self._whole, StoredArray):
            return self._whole
        return jax.make_array_from_single_device_arrays(
            self._like.shape,
            self._like.sharding,
            [cast(jax.Array, data) for _, data in self._blocks],
        )


@functools.partial(jax.jit, donate_argnums=0)
def _overwrite(data: jax.Array, rows: jax.Array, first: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice_in_dim(data, rows, first, axis=0)


def _put_all(
    saved: SavedCheckpoint, all_found: Iterable[_Found], blocks: _Blocks
) -> None:
    for found in all_found:
        for first, rows in found.parts:
            blocks.put(first, rows)
        saved.buffers.give(found.buffer)


def _storage_of(name: str) -> str:
    """Returns the storage of a state's array, such as "embedding_state.rb_64.sum"."""
    return name.split(".")[1]


def _of_storage(tables: Mapping[str, TableLayout], name: str) -> dict[str, RangeLayout]:
    """Returns the row range of each table that lies in the storage of an array."""
    storage = _storage_of(name)
    return {
        table: rows
        for table, ranges in tables.items()
        for rows in ranges
        if rows.storage == storage
    }


def _laid_out_alike(
    manifest: Manifest,
    name: str,
    array: jax.Array,
    tables: Mapping[str, TableLayout],
) -> bool:
    there = manifest.arrays.get(name)
    return (
        there is not None
        and there.shape == array.shape
        and _of_storage(manifest.tables, name) == _of_storage(tables, name)
    )


def _copy_straight(saved: SavedCheckpoint, name: str, blocks: _Blocks) -> None:
    step = max(1, READ_BYTES // blocks.row_bytes)
    step = 1 << step.bit_length() - 1
    parts = [
        (block, range(begin, min(begin + step, end)))
        for block in saved.find(name).blocks
        for rows in blocks.ranges
        for end in [min(rows.stop, block.begin[0] + block.shape[0])]
        for begin in range(max(rows.start, block.begin[0]), end, step)
    ]

    def read(part: tuple[Block, range]) -> _Found:
        block, rows = part
        buffer = saved.buffers.take()
        begin = block.offset + (rows.start - block.begin[0]) * blocks.row_bytes
        found = saved.read(block.file, begin, len(rows) * blocks.row_bytes, buffer)
        found = blocks.rows_in(found, len(rows), blocks.width)
        return _Found(buffer, [(rows.start, found)])

    _put_all(saved, saved.in_threads(read, parts), blocks)


def _copy_rows(
    saved: SavedCheckpoint, name: str, table: str, here: RangeLayout, blocks: _Blocks
) -> None:
    """Copies a table's rows that lie here in one storage, wherever they were."""
    whole = blocks.width == here.width  # else one value a row, in all column shards
    mine = [
        (j, k)
        for j in range(here.row_shards)
        for k in range(here.column_shards)
        if blocks.have(here.first_slots[j][k])
    ]

    def wanted(there: RangeLayout, row_shard: int, column_shard: int) -> bool:
        return any(
            there.shares_rows(row_shard, here, j)
            and (not whole or there.shares_columns(column_shard, here, k))
            for j, k in mine
        )

    def read(piece: range) -> _Found:
        all_held = {
            j: here.held_rows(j, piece.start, piece.stop) for j in {j for j, _ in mine}
        }
        if not any(held.count for held in all_held.values()):
            return _Found(saved.buffers.take(), [])
        in_order, sorted_ = saved.buffers.take(), saved.buffers.take()
        rows = blocks.rows_in(in_order, len(piece), here.dim if whole else 1)
        for there in saved.manifest.tables[table]:
            source = name.split(".")
            source[1] = there.storage
            needed = functools.partial(wanted, there)
            saved.table_rows(there, ".".join(source), piece, rows, needed)
        parts, used = [], 0
        for j, k in mine:
            held = all_held[j]
            if not held.count:
                continue
            part = blocks.rows_in(sorted_[used:], held.count, blocks.width)
            columns = slice(k * blocks.width, (k + 1) * blocks.width)
            part[:] = rows[held.among, columns if whole else slice(None)]
            used += part.nbytes
            parts.append((here.first_slots[j][k] + held.first, part))
        saved.buffers.give(in_order)
        return _Found(sorted_, parts)

    if mine:
        row_bytes = blocks.row_bytes * here.column_shards
        end = saved.manifest.table_rows[table]  # a dynamic table may have more here
        span = range(here.span.start, min(here.span.stop, end))
        all_rows = pieces(span, row_bytes)
        _put_all(saved, saved.in_threads(read, all_rows), blocks)
