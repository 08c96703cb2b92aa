"""The layout of tables' rows in storages, and tables as arrays of their rows.

A table's logical rows are ``0..rows``, whatever the plan and the fleet; a storage has
them shard by shard. Moving tables from one plan to another goes through these rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.plans.layout import Storage

GATHERED_BYTES = 2**26
"""Bytes of a table that each process gets from each other at once."""

PLACE = ["storage", "first_row", "stride", "rows", "first_slot"]
PLACE += ["first_column", "columns"]
"""Fields of a shard's record that say which rows and columns it has, and where."""


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
      storage: number of the storage.
      into: selects them from what is asked for.
      slots: their rows in the array of the storage, at equal distances.
      columns: their columns there.
    """

    storage: int
    into: tuple[slice, slice]
    slots: range
    columns: slice


def table_shards(
    storages: Sequence[Storage], blocks: Mapping[str, int] = MappingProxyType({})
) -> dict[str, np.ndarray]:
    """Returns the records of each table's shards, by name, with ``first_slot`` counted
    in the whole array of a storage.

    Args:
      storages: storages of a plan.
      blocks: rows that each device's block of a dynamic table has, by storage.
    """
    of_tables: dict[str, list[np.ndarray]] = {}
    for storage in storages:
        shards = storage.shards.copy()
        block = blocks.get(storage.name, storage.rows_per_device)
        shards["first_slot"] += shards["owner"] * block
        if storage.dynamic:
            shards["rows"] = block
        for number, table in storage.tables.items():
            of_table = shards[shards["table"] == number]
            of_tables.setdefault(table.name, []).append(of_table)
    return {name: np.concatenate(shards) for name, shards in of_tables.items()}


def rows_and_dim(shards: np.ndarray) -> tuple[int, int]:
    """Returns the numbers of rows and columns of a table with these shards."""
    rows = shards["rows"][shards["first_column"] == 0].sum()
    return int(rows), int((shards["first_column"] + shards["columns"]).max())


def pieces(shards: np.ndarray, numbers: range, columns: range) -> Iterator[Piece]:
    """Yields where those of a table's rows and columns lie that its shards have.

    Args:
      shards: records of shards, as ``table_shards`` returns them.
      numbers: row numbers, ascending.
      columns: columns of the table; ``range(1)`` for a state with one value a row.
    """
    for storage, row, stride, rows, slot, column, width in shards[PLACE].tolist():
        begin, end = max(columns.start, column), min(columns.stop, column + width)
        divisor = math.gcd(numbers.step, stride)
        if begin >= end or (row - numbers.start) % divisor:
            continue
        # Of the numbers those at ``first + i * apart`` lie in this shard,
        # where ``first * step`` is ``row - start``, but for a multiple of the stride.
        apart = stride // divisor
        first = (row - numbers.start) // divisor
        first = first * pow(numbers.step // divisor, -1, apart) % apart
        before = -(-(row - numbers.start) // numbers.step) - first
        first += max(0, -(-before // apart)) * apart
        held = numbers[first::apart]
        index, step = (held.start - row) // stride, held.step // stride
        count = min(len(held), -(-(rows - index) // step))
        if count > 0:
            slot += index
            yield Piece(
                storage,
                (
                    slice(first, first + (count - 1) * apart + 1, apart),
                    slice(begin - columns.start, end - columns.start),
                ),
                range(slot, slot + (count - 1) * step + 1, step),
                slice(begin - column, end - column),
            )


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
    names = [storage.name for storage in collection.plan.storages]
    blocks = dynamic_blocks(collection, storages)
    shards = table_shards(collection.plan.storages, blocks)[table]
    array = storages[names[shards["storage"][-1]]]
    count, dim = rows_and_dim(shards)
    whole = array.shape[1] == shards["columns"][-1]  # else one value a row
    rows = np.zeros((count, dim if whole else 1), array.dtype)
    for piece in pieces(shards, range(count), range(rows.shape[1])):
        slots, array = piece.slots, storages[names[piece.storage]]
        held = _rows_on_device(array, slots.start, len(slots))
        if held is not None:
            rows[piece.into] = held[:, piece.columns]
    if jax.process_count() > 1:
        _add_rows_of_others(rows)
    return rows


def dynamic_blocks(
    collection: EmbeddingCollection, arrays: Mapping[str, Any]
) -> dict[str, int]:
    """Returns ``blocks`` as in ``table_shards``, of the arrays of storages."""
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
