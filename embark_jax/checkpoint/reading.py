"""Reads any rows of any array of a checkpoint, verified, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np

from embark_jax.checkpoint.errors import CheckpointError
from embark_jax.checkpoint.files import (
    CHECKED_BYTES,
    PIECE_BYTES,
    Buffers,
    FileReader,
    read_file,
)
from embark_jax.checkpoint.manifest import NAME, Manifest, SavedArray
from embark_jax.embedding.logical import RangeLayout

READING_THREADS = 4
READ_BYTES = PIECE_BYTES - 2 * CHECKED_BYTES
"""Bytes that surely fit a buffer, wherever they begin."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class SavedCheckpoint:
    """A complete checkpoint.

    Args:
      folder: folder of the checkpoint.
      memory_bytes: memory for bytes that were read and are not yet where they belong.

    Attributes:
      manifest: description of the checkpoint.

    Raises:
      CheckpointError: if a part is missing or its description is damaged.
    """

    def __init__(self, folder: Path, memory_bytes: int):
        self.folder = folder
        self.manifest = Manifest.from_json(read_file(folder / NAME).decode())
        self._files: dict[str, FileReader] = {}
        try:
            for name, size in self.manifest.files.items():
                if Path(name).name != name:
                    raise CheckpointError(
                        f"{NAME} names {name!r}, which is no file here"
                    )
                self._files[name] = FileReader(folder / name, size)
        except BaseException:
            self.close()
            raise
        # Buffers of each piece that is read: as on disk, in order, and as it will lie.
        pieces = memory_bytes // (3 * PIECE_BYTES)
        self._ahead = min(max(1, pieces - 1), READING_THREADS + 2)
        self._threads = min(READING_THREADS, self._ahead + 1)
        self.buffers = Buffers(3 * (self._ahead + 1) * PIECE_BYTES)

    def __enter__(self) -> SavedCheckpoint:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def array(self, name: str) -> np.ndarray:
        """Returns a whole array, if it is a small one.

        Raises:
          CheckpointError: if there is none of that name, or it is damaged.
        """
        saved = self.find(name)
        found = np.empty(saved.shape, np.dtype(saved.dtype))
        for block in saved.blocks:
            data = np.empty(block.shape, found.dtype)
            flat = data.reshape(-1).view(np.uint8)
            for begin, part in self._read(block.file, block.offset, len(flat), 1):
                flat[begin : begin + len(part)] = part
            where = zip(block.begin, block.shape, strict=True)
            found[tuple(slice(begin, begin + n) for begin, n in where)] = data
        return found

    def find(self, name: str) -> SavedArray:
        """Returns the description of an array; raises ``CheckpointError``."""
        if name not in self.manifest.arrays:
            raise CheckpointError(f"{NAME} has no array {name!r}")
        return self.manifest.arrays[name]

    def rows(
        self, name: str, begin: int, count: int
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yields rows of ``[rows, width]`` from ``begin`` on, in parts.

        Yields:
          The number of rows before, and the next rows; they are overwritten thereafter.
        """
        saved, done = self.find(name), 0
        dtype, width = np.dtype(saved.dtype), saved.shape[1]
        row_bytes = width * dtype.itemsize
        while done < count:
            row = begin + done
            block = next(
                each
                for each in saved.blocks
                if each.begin[0] <= row < each.begin[0] + each.shape[0]
            )
            inside = row - block.begin[0]
            here = min(count - done, block.shape[0] - inside)
            offset = block.offset + inside * row_bytes
            for _, part in self._read(block.file, offset, here * row_bytes, row_bytes):
                rows = part.view(dtype).reshape(-1, width)
                yield done, rows
                done += len(rows)

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
        """
        width = self.find(name).shape[1]
        for j in range(layout.row_shards):
            held = layout.held_rows(j, rows.start, rows.stop)
            # A state with one value a row has it in all column shards.
            for k in range(into.shape[1] // width):
                if not held.count or not wanted(j, k):
                    continue
                slot = layout.first_slots[j][k] + held.first
                for done, part in self.rows(name, slot, held.count):
                    where = held.select(done, len(part))
                    into[where, k * width : (k + 1) * width] = part

    def in_threads(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[Result]:
        """Yields the function's results in order, and computes a few of them ahead."""
        waiting: deque[Future[Result]] = deque()
        with ThreadPoolExecutor(self._threads, "checkpoint-read") as pool:
            try:
                for item in items:
                    waiting.append(pool.submit(function, item))
                    if len(waiting) > self._ahead:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            except BaseException as error:
                self.buffers.fail(error)
                pool.shutdown(cancel_futures=True)
                raise

    def read(self, file: str, offset: int, size: int, buffer: np.ndarray) -> np.ndarray:
        """Reads at most ``READ_BYTES`` of a file, verified, into a part of the
        buffer."""
        return self._files[file].read(offset, offset + size, buffer)

    def _read(
        self, file: str, offset: int, size: int, unit: int
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yields a file's bytes in parts of whole units, and where each begins."""
        buffer, done = self.buffers.take(), 0
        try:
            while done < size:
                begin = offset + done
                # As many whole checked parts as the buffer takes.
                most = begin // CHECKED_BYTES * CHECKED_BYTES + PIECE_BYTES - begin
                count = min(size - done, most // unit * unit)
                yield done, self._files[file].read(begin, begin + count, buffer)
                done += count
        finally:
            self.buffers.give(buffer)


def pieces(rows: range, row_bytes: int) -> Iterator[range]:
    """Yields rows of a table in parts that fit a buffer."""
    step = 1 << max(1, PIECE_BYTES // row_bytes).bit_length() - 1
    return (rows[i : i + step] for i in range(0, len(rows), step))
