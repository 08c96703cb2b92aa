"""Puts the arrays of a checkpoint onto devices, whatever plan wrote them.

A table goes through host memory some thousands of its rows at a time, out of the shards
that hold them and into those that will: those of the same plan, those of another one,
or the first rows of a larger table. The arrays of tables are overwritten in place, so
that neither devices nor hosts need room for a second state.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from embark_jax.cache.stored_rows import KEY, NO_ROW, USED, StoredArray, StoredRows
from embark_jax.checkpoint.arrays import (
    is_key,
    is_of_table,
    named_arrays,
    with_arrays,
)
from embark_jax.checkpoint.errors import CheckpointError, OverwrittenError, reason
from embark_jax.checkpoint.reading import SavedCheckpoint, in_threads, row_chunks
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.logical import rows_and_dim, table_shards
from embark_jax.plans.layout import Storage
from embark_jax.plans.plan import Plan
from embark_jax.train.state import TrainState

OVERWRITTEN_BYTES = 1 << 20
"""Bytes of a device's array that are overwritten at a time."""

OPTIMIZER_FIELDS = ("dense_state", "embedding_state")
"""Fields of the state that are the optimizers'."""

ROW_VALUES = 16
"""Bytes of a parameter with its optimizer state, roughly."""


def fill(
    saved: SavedCheckpoint,
    arrays: dict[str, Any],
    plan: Plan,
    counts: Mapping[str, int],
) -> None:
    """Puts what a checkpoint has in place of a state's arrays.

    Args:
      saved: the checkpoint.
      arrays: arrays by name in the state, which change; those of tables are overwritten
        row by row. If this fails it has what is left of them.
      plan: plan of these arrays.
      counts: number of first rows that are taken, by table. Rows of dynamic tables are
        taken by key, all that there are.

    Raises:
      CheckpointError: if the checkpoint is damaged, or lacks an array of this shape;
        ``OverwrittenError`` if some rows are overwritten by then.
    """
    tables = {name: array for name, array in arrays.items() if is_of_table(name)}
    for name in arrays.keys() - tables.keys():
        arrays[name] = _whole_array(saved, name, arrays[name])
    for name, array in tables.items():
        try:
            if not isinstance(array, StoredRows):
                blocks = Blocks(array)
                try:
                    _overwrite(saved, blocks, name, plan, counts)
                finally:
                    arrays[name] = blocks.array()
            elif array.table in saved.contents.tables:
                _fill_by_key(saved, array)
        except (CheckpointError, OSError) as error:
            raise OverwrittenError(reason(error)) from None


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
      state: a new trainer's ``blank_state``, filled with initial rows; consumed.
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
    fill(saved, chosen, embeddings.plan, counts)
    state = with_arrays(state, arrays | chosen)
    if not keep_optimizer:
        return state
    replicated = NamedSharding(embeddings.mesh, PartitionSpec())
    step = np.int32(saved.contents.step)
    return state._replace(step=jax.jit(lambda: step, out_shardings=replicated)())


def _fill_by_key(saved: SavedCheckpoint, rows_by_key: StoredRows) -> None:
    """Gives a dynamic table those of its rows that this process owns."""
    rows_by_key.clear()
    table, state = rows_by_key.table, "embedding_state.{{}}.{}".format
    values = {
        name: state(name) if name else "storages.{}" for name in rows_by_key.words
    }
    room, dim = rows_and_dim(saved.contents.shards[table])

    def read(numbers: range):
        keys, used = (
            saved.rows(table, state(name), numbers, range(1))[:, 0]
            for name in (KEY, USED)
        )
        own = np.flatnonzero((used != NO_ROW) & rows_by_key.owned(keys))
        if not len(own):
            return None
        rows = {
            value: saved.rows(table, array, numbers, range(dim))[own]
            for value, array in values.items()
        }
        return keys[own], used[own], rows

    for taken in in_threads(read, row_chunks(room, ROW_VALUES * dim)):
        if taken is not None:
            rows_by_key.import_rows(*taken)


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
    implementation = saved.contents.keys[name]
    wrap = functools.partial(jax.random.wrap_key_data, impl=implementation)
    return jax.jit(wrap, out_shardings=like.sharding)(array)


def _overwrite(
    saved: SavedCheckpoint,
    blocks: Blocks,
    name: str,
    plan: Plan,
    counts: Mapping[str, int],
) -> None:
    """Gives the blocks of an array what they need, a few rows at a time."""
    _, storage, *_ = name.split(".")
    array = name.replace(f".{storage}", ".{}", 1)
    (own,) = (each for each in plan.storages if each.name == storage)

    def read(needed: Needed) -> tuple[int, np.ndarray]:
        rows = saved.rows(needed.table, array, needed.numbers, needed.columns)
        return needed.slot, rows

    for slot, rows in in_threads(read, _needed(blocks, own, counts)):
        blocks.put(slot, rows)


class Needed(NamedTuple):
    """Rows that a device needs: the first of them will lie in ``slot`` of the array.
    The other fields are as in ``SavedCheckpoint.rows``."""

    slot: int
    table: str
    numbers: range
    columns: range


def _needed(
    blocks: Blocks, storage: Storage, counts: Mapping[str, int]
) -> Iterator[Needed]:
    """Yields which rows of which tables the blocks of an array of a storage need."""
    fields = ["first_slot", "first_row", "row_shard", "first_column", "columns"]
    for table, shards in table_shards([storage]).items():
        own = [shard for shard in shards[fields].tolist() if shard[0] in blocks]
        rows, dim = rows_and_dim(shards)
        begin, stride = shards[["first_row", "stride"]][0].item()
        end = min(begin + rows, counts.get(table, 0))
        row_bytes = blocks.row_bytes * (dim // storage.width)
        for part in row_chunks(end - begin, row_bytes) if own else ():
            for slot, first_row, row_shard, column, width in own:
                first, stop = (
                    -(-(row - row_shard) // stride) for row in (part.start, part.stop)
                )
                numbers = range(first_row, end, stride)[first:stop]
                columns = range(column, column + width)
                if blocks.width != width:  # one value in all column shards
                    columns = range(1)
                if numbers:
                    yield Needed(slot + first, table, numbers, columns)


class Blocks:
    """The blocks of a table's array on the devices of this process.

    Attributes:
      width, row_bytes: columns, and bytes of a row.
    """

    def __init__(self, array: jax.Array | StoredArray):
        self._array, shards = array, array.addressable_shards
        self._begins = [shard.index[0].start or 0 for shard in shards]
        self._data: list[Any] = [shard.data for shard in shards]
        self.width = array.shape[1]
        self.row_bytes = self.width * np.dtype(array.dtype).itemsize

    def __contains__(self, row: int) -> bool:
        """Whether a row of the array lies in one of the blocks."""
        return any(begin <= row < begin + len(self._data[0]) for begin in self._begins)

    def put(self, first: int, rows: np.ndarray) -> None:
        """Overwrites rows from one on, wherever this process has them."""
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
                data = _with_rows(data, cut, np.int32(first - begin + i))
            # The rows' memory must not go before they are there.
            self._data[number] = data.block_until_ready()

    def array(self) -> jax.Array | StoredArray:
        """Returns the array as it is now."""
        if isinstance(self._array, StoredArray):
            return self._array
        shape, sharding = self._array.shape, self._array.sharding
        return jax.make_array_from_single_device_arrays(shape, sharding, self._data)


@functools.partial(jax.jit, donate_argnums=0)
def _with_rows(data: jax.Array, rows: jax.Array, first: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice_in_dim(data, rows, first, axis=0)
