"""Reads any rows of any array of a checkpoint, verified, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import tensorstore as ts
from etils import epath

from embark_jax.checkpoint.description import ARRAYS, DESCRIPTION, NAME, Description
from embark_jax.checkpoint.errors import CheckpointError, reason
from embark_jax.checkpoint.layout import open_array
from embark_jax.data.pipeline import in_order
from embark_jax.embedding.logical import RangeLayout

READING_BYTES = 256 << 20
"""Most bytes of memory that reading takes: more makes it no faster."""
READING_THREADS = 4
EXTENT_BYTES = 8 << 20
"""Bytes that are read at a time."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class SavedCheckpoint:
    """A complete checkpoint.

    Args:
      folder: folder of the checkpoint.
      memory_bytes: memory for what is read and not yet where it belongs.

    Attributes:
      description: description of the checkpoint.

    Raises:
      CheckpointError: if something is missing or the description is damaged.
    """

    def __init__(self, folder: epath.Path, memory_bytes: int = READING_BYTES):
        self.folder = folder
        try:
            text = (folder / DESCRIPTION / NAME).read_bytes().decode("utf-8", "replace")
        except FileNotFoundError:
            raise CheckpointError(f"{NAME} is missing") from None
        self.description = Description.from_json(text)
        # A quarter of the memory keeps chunks of which other rows are read soon.
        context = ts.Context({"cache_pool": {"total_bytes_limit": memory_bytes // 4}})
        opening = {
            name: open_array(folder / ARRAYS, name, context)
            for name in self.description.arrays
        }
        self._stores = {name: _result(future) for name, future in opening.items()}
        for name, store in self._stores.items():
            shape = str(store.dtype.numpy_dtype), store.shape
            if shape != self.description.arrays[name]:
                raise CheckpointError(f"{name}/zarr.json differs from {NAME}")
        # A extent is in memory as chunks, in order, and as it will lie.
        extents_in_memory = memory_bytes // (4 * EXTENT_BYTES)
        self._ahead = min(max(1, extents_in_memory - 1), READING_THREADS + 2)

    def array(self, name: str) -> np.ndarray:
        """Returns a whole array, if it is a small one.

        Raises:
          CheckpointError: if there is none of that name, or it is damaged.
        """
        return _result(self._store(name).read())

    def rows(self, name: str, begin: int, count: int) -> Callable[[], np.ndarray]:
        """Begins to read rows of one block of a table's array of ``[rows, width]``.

        Returns:
          A function that waits for them; it raises ``CheckpointError`` if they are
          damaged.
        """
        store = self._store(name)
        block, slot = divmod(begin, store.shape[1])
        future = store[block, slot : slot + count].read()
        return lambda: _result(future)

    def table_rows(
        self,
        layout: RangeLayout,
        name: str,
        rows: range,
        into: np.ndarray,
        wanted: Callable[[int, int], bool] = lambda row_shard, column_shard: True,
    ) -> None:
        """Reads those rows of a table that are in a range, whatever plan wrote them.

        Args:
          layout: layout of a range of this checkpoint.
          name: name of an array of its storage.
          rows: row numbers.
          into: ``[rows, dim]`` array, or ``[rows, 1]`` for a state with one value a
            row; rows of other ranges keep their values.
          wanted: says which of the range's shards are needed; the others are not read.

        Raises:
          CheckpointError: if they are damaged.
        """
        width, reads = self._store(name).shape[2], []
        for j in range(layout.row_shards):
            held = layout.held_rows(j, rows.start, rows.stop)
            # A state with one value a row has it in all column shards.
            for k in range(into.shape[1] // width):
                if held.count and wanted(j, k):
                    slot = layout.first_slots[j][k] + held.first
                    where = held.among, slice(k * width, (k + 1) * width)
                    reads.append((where, self.rows(name, slot, held.count)))
        for where, read in reads:
            into[where] = read()

    def in_threads(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[Result]:
        """Yields the function's results in order, and computes a few of them ahead."""
        return in_order(function, items, workers=READING_THREADS, depth=self._ahead)

    def _store(self, name: str) -> ts.TensorStore:
        if name not in self._stores:
            raise CheckpointError(f"{NAME} has no array {name!r}")
        return self._stores[name]


def extents(rows: range, row_bytes: int) -> Iterator[range]:
    """Yields rows of a table in parts of ``EXTENT_BYTES``."""
    step = 1 << max(1, EXTENT_BYTES // row_bytes).bit_length() - 1
    return (rows[i : i + step] for i in range(0, len(rows), step))


def _result(future: ts.Future):
    try:
        return future.result()
    except Exception as error:
        raise CheckpointError(reason(error)) from None
