"""Puts the arrays of a checkpoint onto devices, whatever plan wrote them.

A table goes through host memory some thousands of its rows at a time, out of the shards
that hold them and into those that will: those of the same plan, those of another one,
or the first rows of a larger table. The arrays of tables are overwritten in place, so
that neither devices nor hosts need room for a second state.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from embark_jax.cache.stored_rows import KEY, NO_ROW, USED, StoredArray, StoredRows
from embark_jax.checkpoint.errors import CheckpointError
from embark_jax.checkpoint.layout import is_key, named_arrays, of_table, with_arrays
from embark_jax.checkpoint.reading import SavedCheckpoint, extents
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.logical import RangeLayout, TableLayout, table_layouts
from embark_jax.train.state import TrainState

OVERWRITTEN_BYTES = 1 << 20
"""Bytes of a device's array that are overwritten at a time."""

OPTIMIZER_FIELDS = ("dense_state", "embedding_state")
"""Fields of the state that are the optimizers'."""

ROW_VALUES = 16
"""Bytes of a parameter with its optimizer state, roughly."""

Rows = tuple[int, np.ndarray]
"""Consecutive rows of an array, ``[rows, width]``, and the number of the first."""


def fill(
    saved: SavedCheckpoint,
    arrays: dict[str, Any],
    tables: Mapping[str, TableLayout],
    counts: Mapping[str, int],
) -> None:
    """Puts what a checkpoint has in place of a state's arrays.

    Args:
      saved: the checkpoint.
      arrays: arrays by name in the state, which change; those of tables are overwritten
        row by row. If this fails it has what is left of them.
      tables: layouts of the tables in these arrays.
      counts: number of first rows that are taken, by table. Rows of dynamic tables are
        taken by key, all that there are.

    Raises:
      CheckpointError: if the checkpoint is damaged, or lacks an array of this shape.
    """
    for name, array in arrays.items():
        if not of_table(name):
            arrays[name] = _whole_array(saved, name, array)
        elif isinstance(array, StoredRows):
            if array.table in saved.description.tables:
                _fill_by_key(saved, array)
        else:
            blocks = Blocks(array)
            try:
                for first, rows in _own_rows(saved, name, blocks, tables, counts):
                    blocks.put(first, rows)
            finally:
                arrays[name] = blocks.array()


def warm_state(
    saved: SavedCheckpoint,
    state: TrainState,
    embeddings: EmbeddingCollection,
    counts: Mapping[str, int],
    keep_optimizer: bool,
) -> TrainState:
    """Returns a new run's state with what comes over from a checkpoint of another one.

    Args:
      saved: the checkpoint.
      state: a new trainer's ``state_to_fill``; consumed.
      embeddings: collection that the state belongs to.
      counts: number of first rows that come over, by table; dynamic tables get all
        rows of then, and all other rows keep their initial values.
      keep_optimizer: whether the state of the optimizers and the number of steps come
        over, too.

    Raises:
      CheckpointError: if the checkpoint is damaged, or an array of the dense model or
        of the optimizers has another shape there.
    """
    jax.block_until_ready(state)  # else reading pays for initial tables
    arrays = named_arrays(state)
    chosen = {
        name: array
        for name, array in arrays.items()
        if keep_optimizer or not name.startswith(OPTIMIZER_FIELDS)
    }
    fill(saved, chosen, table_layouts(embeddings.plan.storages), counts)
    state = with_arrays(state, arrays | chosen)
    if not keep_optimizer:
        return state
    replicated = NamedSharding(embeddings.mesh, PartitionSpec())
    step = np.int32(saved.description.step)
    return state._replace(step=jax.jit(lambda: step, out_shardings=replicated)())


def _fill_by_key(saved: SavedCheckpoint, rows_by_key: StoredRows) -> None:
    """Gives a dynamic table those of its rows that this process owns."""
    rows_by_key.clear()
    (layout,) = saved.description.tables[rows_by_key.table]
    states = f"embedding_state.{layout.storage}.{{}}".format
    names = {"": f"storages.{layout.storage}"} | {
        n: states(n) for n in rows_by_key.states
    }
    block = len(range(0, layout.end, layout.row_shards))

    def read(rows: tuple[int, range]):
        row_shard, extent = rows
        first = layout.first_slots[row_shard][0] + extent.start
        reads = [saved.rows(states(name), first, len(extent)) for name in (KEY, USED)]
        keys, used = (wait()[:, 0] for wait in reads)
        own = np.flatnonzero((used != NO_ROW) & rows_by_key.owned(keys))
        if not len(own):
            return None
        values = {}
        for value, name in names.items():
            reads = [
                saved.rows(name, first + extent.start, len(extent))
                for first in layout.first_slots[row_shard]
            ]
            columns = [wait() for wait in reads]
            if columns[0].shape[1] != layout.width:  # one value a row, in all of them
                columns = columns[:1]
            values[value] = np.concatenate(columns, axis=1)[own]
        return keys[own], used[own], values

    items = (
        (row_shard, extent)
        for row_shard in range(layout.row_shards)
        for extent in extents(range(block), ROW_VALUES * layout.dim)
    )
    for taken in saved.in_threads(read, items):
        if taken is not None:
            rows_by_key.take(*taken)


def _whole_array(saved: SavedCheckpoint, name: str, like: jax.Array) -> jax.Array:
    """Returns an array that is not of tables, sharded like another one."""
    data = jax.random.key_data(like) if is_key(like) else like
    value = saved.array(name)
    if (value.shape, value.dtype) != (data.shape, data.dtype):
        raise CheckpointError(
            f"{name} is {value.dtype}{list(value.shape)} in the checkpoint, "
            f"{data.dtype}{list(data.shape)} here"
        )
    array = jax.make_array_from_callback(
        data.shape, data.sharding, lambda index: value[index]
    )
    if not is_key(like):
        return array
    implementation = saved.description.keys[name]
    wrap = functools.partial(jax.random.wrap_key_data, impl=implementation)
    return jax.jit(wrap, out_shardings=like.sharding)(array)


class Blocks:
    """The blocks of a table's array on the devices of this process.

    Attributes:
      width, dtype: as of the array.
      ranges: rows that this process has, each once.
    """

    def __init__(self, array: jax.Array | StoredArray):
        self._array, self._blocks = array, array.addressable_shards
        self._begins = [shard.index[0].start or 0 for shard in self._blocks]
        self._data: list[Any] = [shard.data for shard in self._blocks]
        self.width = array.shape[1]
        self.dtype = np.dtype(array.dtype)
        size = array.sharding.shard_shape(array.shape)[0]
        self.ranges = [range(i, i + size) for i in sorted(set(self._begins))]

    @property
    def row_bytes(self) -> int:
        return self.width * self.dtype.itemsize

    def put(self, first: int, rows: np.ndarray) -> None:
        """Overwrites rows, wherever this process has them."""
        for number, begin in enumerate(self._begins):
            data = self._data[number]
            if not begin <= first < begin + len(data):
                continue
            if isinstance(data, np.ndarray):
                data[first - begin : first - begin + len(rows)] = rows
                continue
            # Few sizes, so that few programs are compiled: the last cut overlaps.
            limit = max(1, OVERWRITTEN_BYTES // self.row_bytes)
            size = 1 << min(len(rows), limit).bit_length() - 1
            for i in [*range(0, len(rows) - size, size), len(rows) - size]:
                cut = jax.device_put(rows[i : i + size], data.device, may_alias=True)
                data = _overwrite(data, cut, np.int32(first - begin + i))
            # The rows' memory must not go before they are there.
            self._data[number] = data.block_until_ready()

    def array(self) -> jax.Array | StoredArray:
        """Returns the array as it is now."""
        if isinstance(self._array, StoredArray):
            return self._array
        shape, sharding = self._array.shape, self._array.sharding
        return jax.make_array_from_single_device_arrays(shape, sharding, self._data)


@functools.partial(jax.jit, donate_argnums=0)
def _overwrite(data: jax.Array, rows: jax.Array, first: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice_in_dim(data, rows, first, axis=0)


def _own_rows(
    saved: SavedCheckpoint,
    name: str,
    blocks: Blocks,
    tables: Mapping[str, TableLayout],
    counts: Mapping[str, int],
) -> Iterator[Rows]:
    """Yields the rows that this process has of an array, wherever they were."""
    storage = name.split(".")[1]
    for table, count in counts.items():
        for here in tables.get(table, ()):
            if here.storage == storage:
                yield from _own_rows_of(saved, name, blocks, table, here, count)


def _own_rows_of(
    saved: SavedCheckpoint,
    name: str,
    blocks: Blocks,
    table: str,
    here: RangeLayout,
    count: int,
) -> Iterator[Rows]:
    """Yields those of a table's first ``count`` rows that lie in one range here."""
    whole = blocks.width == here.width  # else one value a row, in all column shards
    own_shards = [
        (j, k)
        for j in range(here.row_shards)
        for k in range(here.column_shards)
        if any(here.first_slots[j][k] in rows for rows in blocks.ranges)
    ]

    def wanted(there: RangeLayout, row_shard: int, column_shard: int) -> bool:
        return any(
            there.shares_rows(row_shard, here, j)
            and (not whole or there.shares_columns(column_shard, here, k))
            for j, k in own_shards
        )

    def read(extent: range) -> list[Rows]:
        held = {j: here.held_rows(j, extent.start, extent.stop) for j, _ in own_shards}
        if not any(rows.count for rows in held.values()):
            return []
        rows = np.empty((len(extent), here.dim if whole else 1), blocks.dtype)
        for there in saved.description.tables[table]:
            source = name.replace(f".{here.storage}", f".{there.storage}", 1)
            saved.table_rows(
                there, source, extent, rows, functools.partial(wanted, there)
            )
        batch = []
        for j, k in own_shards:
            first = here.first_slots[j][k] + held[j].first
            columns = slice(k * blocks.width, (k + 1) * blocks.width)
            data = rows[held[j].among, columns if whole else slice(None)]
            if len(data):
                batch.append((first, np.ascontiguousarray(data)))
        return batch

    if own_shards:
        span = range(here.begin, min(here.end, count))
        all_extents = extents(span, blocks.row_bytes * here.column_shards)
        for batch in saved.in_threads(read, all_extents):
            yield from batch
