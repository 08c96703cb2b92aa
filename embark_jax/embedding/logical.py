"""The layout of tables' rows in storages, and tables as arrays of their rows.

A table's logical rows are ``0..rows``, whatever the plan and the fleet; a storage has
them shard by shard. Moving tables from one plan to another goes through these rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.plans.layout import Storage

GATHERED_BYTES = 2**26
"""Bytes of a table that each process gets from each other at once."""


class TableRows(NamedTuple):
    """All rows of a table.

    Attributes:
      keys: ``[rows]`` int64: row numbers from 0, in order; of a dynamic table its keys,
        ascending.
      rows: ``[rows, dim]``, in the number format of the table.
    """

    keys: np.ndarray
    rows: np.ndarray


class Piece(NamedTuple):
    """Some of the rows and columns that are asked for, as one shard has them.

    Attributes:
      into: selects them from what is asked for.
      slots: their rows in the array of the storage, at equal distances.
      columns: their columns there.
    """

    into: tuple[slice, slice]
    slots: range
    columns: slice


@dataclasses.dataclass(frozen=True)
class RangeLayout:
    """The layout of rows ``[begin, end)`` of a table in the array of a storage, or of
    one of its states.

    Row i of row shard j and column shard k is row ``first_slots[j][k] + i`` of the
    array. Rows go to row shards round robin: row ``begin + r`` of the table is row
    ``r // n`` of row shard ``r % n`` of n.

    Attributes:
      storage: name of the storage.
      begin, end: range of the rows.
      dim: dim of the table.
      first_slots: ``[row_shards][column_shards]`` first slot of each shard.
    """

    storage: str
    begin: int
    end: int
    dim: int
    first_slots: tuple[tuple[int, ...], ...]

    @property
    def row_shards(self) -> int:
        return len(self.first_slots)

    @property
    def column_shards(self) -> int:
        return len(self.first_slots[0])

    @property
    def width(self) -> int:
        """Columns of a shard."""
        return self.dim // self.column_shards

    def pieces(self, numbers: range, columns: range) -> Iterator[Piece]:
        """Yields where those of a table's rows and columns lie that are in the range.

        Args:
          numbers: row numbers, ascending.
          columns: columns of the table; ``range(1)`` for a state with one value a row.
        """
        n, width = self.row_shards, self.width
        before = max(0, -(-(self.begin - numbers.start) // numbers.step))
        own = range(numbers.start, min(numbers.stop, self.end), numbers.step)[before:]
        # Every so many of them lie in one row shard.
        apart = n // math.gcd(n, numbers.step)
        for i in range(min(apart, len(own))):
            held = own[i::apart]
            index, j = divmod(held.start - self.begin, n)
            rows = slice(before + i, before + len(own), apart)
            for k, first in enumerate(self.first_slots[j]):
                begin = max(columns.start, k * width)
                end = min(columns.stop, (k + 1) * width)
                if begin < end:
                    slot, step = first + index, held.step // n
                    yield Piece(
                        (rows, slice(begin - columns.start, end - columns.start)),
                        range(slot, slot + (len(held) - 1) * step + 1, step),
                        slice(begin - k * width, end - k * width),
                    )


TableLayout = tuple[RangeLayout, ...]
"""Layouts of all rows of a table: its hot rows, if it has any, and its cold ones."""


def table_layouts(
    storages: Iterable[Storage], blocks: Mapping[str, int] = MappingProxyType({})
) -> dict[str, TableLayout]:
    """Returns the layouts of all tables in the storages of a plan, by name; ``blocks``
    are the rows that each device's block of a dynamic table has, by storage."""
    layouts: dict[str, TableLayout] = {}
    for storage in storages:
        block = blocks.get(storage.name, storage.rows_per_device)
        for number, table in storage.tables.items():
            layout = _range_layout(storage, number, block)
            layouts[table.name] = (*layouts.get(table.name, ()), layout)
    # In the order of rows; the storage of hot rows need not come first.
    return {
        name: tuple(sorted(ranges, key=lambda layout: layout.begin))
        for name, ranges in layouts.items()
    }


def export_table(
    collection: EmbeddingCollection, storages: Mapping[str, jax.Array], table: str
) -> np.ndarray:
    """Returns a table in NumPy. In a run of several processes all must call it, and all
    get the whole table.

    Args:
      collection: collection that the arrays belong to.
      storages: its storages, or one optimizer state of each; with all rows of cached
        tables, as a trainer's ``whole_state`` has them.
      table: name of the table.

    Returns:
      ``[rows, dim]``; ``[rows, 1]`` for a state with one value a row. Of a dynamic
      table some are room for a row; the array of slots says which.

    Raises:
      ValueError: if there is no such table, the arrays have only those of its rows that
        are in slots, or they are of another collection.
    """
    tables = [spec.name for spec in collection.plan.tables]
    if table not in tables:
        raise ValueError(f"no table {table!r}; there are {', '.join(tables)}")
    _check_arrays(collection, storages, table)
    layouts = table_layouts(
        collection.plan.storages, dynamic_blocks(collection, storages)
    )
    last = layouts[table][-1]
    array = storages[last.storage]
    whole = array.shape[1] == last.width  # else one value a row
    rows = np.zeros((last.end, last.dim if whole else 1), array.dtype)
    for layout in layouts[table]:
        for piece in layout.pieces(range(len(rows)), range(rows.shape[1])):
            slots = piece.slots
            held = _rows_on_device(storages[layout.storage], slots.start, len(slots))
            if held is not None:
                rows[piece.into] = held[:, piece.columns]
    if jax.process_count() > 1:
        _add_rows_of_others(rows)
    return rows


def dynamic_blocks(
    collection: EmbeddingCollection, arrays: Mapping[str, Any]
) -> dict[str, int]:
    """Returns ``blocks`` as in ``table_layouts``, of the arrays of storages."""
    return {
        storage.name: arrays[storage.name].shape[0] // collection.plan.devices
        for storage in collection.plan.storages
        if storage.dynamic and hasattr(arrays.get(storage.name), "shape")
    }


def _check_arrays(
    collection: EmbeddingCollection, storages: Mapping[str, Any], table: str
) -> None:
    """Raises ``ValueError`` unless the arrays have all rows of a table."""
    for storage in collection.plan.storages:
        if table not in [each.name for each in storage.tables.values()]:
            continue
        array = storages.get(storage.name)
        if storage.cached and isinstance(array, jax.Array):
            raise ValueError(
                f"table {table!r} is cached: these arrays have the rows that are in "
                f"slots, not all; trainer.table({table!r}) returns all"
            )
        blocks = 1 if storage.replicated else collection.plan.devices
        rows = storage.rows_per_device * blocks
        if storage.dynamic and array is not None:
            continue
        if array is None or array.shape[0] != rows:
            state = "missing" if array is None else f"of {array.shape[0]:,} rows"
            raise ValueError(
                f"table {table!r}: storage {storage.name!r} is {state}, has {rows:,} "
                f"rows in this collection; take trainer.embeddings, or "
                f"trainer.table({table!r})"
            )


def _rows_on_device(array: jax.Array, first: int, count: int) -> np.ndarray | None:
    """Returns rows that one device holds, None if it is one of another process; of rows
    that all devices hold, the first. Slicing the whole array would gather it."""
    for shard in array.addressable_shards:
        begin = shard.index[0].start or 0
        if shard.replica_id == 0 and begin <= first < begin + len(shard.data):
            return np.asarray(shard.data)[first - begin : first - begin + count]
    return None


def _add_rows_of_others(rows: np.ndarray) -> None:
    """Fills in, in each process, the values that others have, which are zero here."""
    at_once = max(1, GATHERED_BYTES // (rows.itemsize * rows.shape[1]))
    for begin in range(0, len(rows), at_once):
        share = rows[begin : begin + at_once]
        shares = multihost_utils.process_allgather(share.view(np.uint8))
        share[...] = np.bitwise_or.reduce(np.asarray(shares)).view(rows.dtype)


def _range_layout(storage: Storage, table: int, block: int) -> RangeLayout:
    shards = storage.shards[storage.shards["table"] == table]
    begin, row_shards = shards["first_row"][0], shards["stride"][0]
    rows = shards["rows"][shards["column_shard"] == 0].sum()
    if storage.dynamic:
        rows = block * row_shards
    slots = (shards["owner"] * block + shards["first_slot"]).reshape(row_shards, -1)
    return RangeLayout(
        storage.name,
        int(begin),
        int(begin + rows),
        storage.tables[table].dim,
        tuple(map(tuple, slots.tolist())),
    )
