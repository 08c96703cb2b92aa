"""Reads a checkpoint: any rows of any array, verified, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np

from embark_jax.embedding.logical import TableLayout
from embark_jax.train.checkpoint.errors import CheckpointError
from embark_jax.train.checkpoint.files import (
    CHECKED_BYTES,
    PIECE_BYTES,
    Buffers,
    FileReader,
    read_file,
)
from embark_jax.train.checkpoint.manifest import (
    NAME,
    Manifest,
    SavedArray,
)

READING_THREADS = 4
LEAST_ROWS = 4096
"""Of a table that are read together: more than are dealt."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class SavedCheckpoint:
    """A complete checkpoint.

    Args:
      folder: of the checkpoint.
      memory_bytes: of what is read and not yet where it belongs.

    Attributes:
      manifest: what it holds.

    Raises:
      CheckpointError: if a part is missing or its description is damaged.
    """

    def __init__(self, folder: Path, memory_bytes: int):
        self.folder = folder
        self.manifest = Manifest.from_json(read_file(folder / NAME).decode())
        self._files: dict[str, FileReader] = {}
        try:
            for name, size in self.manifest.files.items():
                self._files[name] = FileReader(folder / name, size)
        except BaseException:
            self.close()
            raise
        # For each that waits: what was read of it, its rows, and those in order.
        pieces = max(2, min(READING_THREADS + 2, memory_bytes // (4 * PIECE_BYTES)))
        self._ahead = pieces - 1
        self._threads = min(READING_THREADS, pieces)
        self.piece_bytes = min(PIECE_BYTES, memory_bytes // (4 * pieces))
        self._buffers = Buffers(pieces * PIECE_BYTES)

    def __enter__(self) -> SavedCheckpoint:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def array(self, name: str) -> np.ndarray:
        """A whole array, for those that are small.

        Raises:
          CheckpointError: if there is none of that name, or it is damaged.
        """
        saved = self.find(name)
        found = np.empty(saved.shape, np.dtype(saved.dtype))
        for block in saved.blocks:
            data = np.empty(block.shape, found.dtype)
            self._read(block.file, block.offset, data)
            where = zip(block.begin, block.shape, strict=True)
            found[tuple(slice(begin, begin + n) for begin, n in where)] = data
        return found

    def find(self, name: str) -> SavedArray:
        """The description of an array; raises ``CheckpointError``."""
        if name not in self.manifest.arrays:
            raise CheckpointError(f"{NAME} has no array {name!r}")
        return self.manifest.arrays[name]

    def read_rows(self, name: str, begin: int, into: np.ndarray) -> None:
        """Copies rows of ``[rows, width]`` from ``begin`` on into ``[n, width]``."""
        saved, done = self.find(name), 0
        while done < len(into):
            row = begin + done
            block = next(
                each
                for each in saved.blocks
                if each.begin[0] <= row < each.begin[0] + each.shape[0]
            )
            inside = row - block.begin[0]
            count = min(len(into) - done, block.shape[0] - inside)
            offset = block.offset + inside * into.shape[1] * into.itemsize
            self._read(block.file, offset, into[done : done + count])
            done += count

    def table_rows(
        self,
        table: TableLayout,
        name: str,
        begin: int,
        end: int,
        wanted: Callable[[int, int], bool] = lambda row_shard, column_shard: True,
    ) -> np.ndarray:
        """``[end - begin, dim or 1]`` rows of a table, whatever plan wrote them.

        Args:
          table: of this checkpoint.
          name: of an array of the table's storage.
          begin, end: the rows.
          wanted: tells of the table's shards which are needed; what others hold is not
            read, and undefined.
        """
        saved = self.find(name)
        width = saved.shape[1]
        whole = width == table.width  # else one value a row, the same for all columns
        rows = np.empty((end - begin, table.dim if whole else 1), np.dtype(saved.dtype))
        for j in range(table.row_shards):
            held = table.held_rows(j, begin, end)
            if not held.count:
                continue
            part = np.empty((held.count, width), rows.dtype)
            for k in range(table.column_shards if whole else 1):
                if wanted(j, k):
                    slot = table.first_slots[j][k] + held.first
                    self.read_rows(name, slot, part)
                    rows[held.among, k * width : (k + 1) * width] = part
        return rows

    def pieces_of_table(self, table: TableLayout, name: str) -> Iterator[range]:
        """The rows of a table in parts as large as memory allows."""
        row_bytes = 4 * (table.dim if self.find(name).shape[1] > 1 else 1)
        step = max(LEAST_ROWS, self.piece_bytes // row_bytes)
        return (
            range(begin, min(begin + step, table.rows))
            for begin in range(0, table.rows, step)
        )

    def in_threads(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[Result]:
        """The function's results in order, a few of them ahead."""
        waiting: deque[Future[Result]] = deque()
        with ThreadPoolExecutor(self._threads, "checkpoint-read") as pool:
            try:
                for item in items:
                    waiting.append(pool.submit(function, item))
                    if len(waiting) > self._ahead:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _read(self, file: str, offset: int, into: np.ndarray) -> None:
        """Fills a contiguous array."""
        data, reader = into.reshape(-1).view(np.uint8), self._files[file]
        buffer, done = self._buffers.take(), 0
        try:
            while done < len(data):
                begin = offset + done
                # As many whole checked parts as the buffer takes.
                most = begin // CHECKED_BYTES * CHECKED_BYTES + PIECE_BYTES - begin
                count = min(len(data) - done, most)
                data[done : done + count] = reader.read(begin, begin + count, buffer)
                done += count
        finally:
            self._buffers.give(buffer)
