"""Rows in a file, in the order in which they were last written.

Rows that leave slots in one step are written to the end of a log, which goes around in
its file: a write is sequential, and reads no page first, as a write to rows in order
would. Rows that were written together share pages, so that the operating system's page
cache, which keeps pages that were used last, keeps the rows that left last: these are
the likeliest to come back. Ahead of the log's end, rows that were not written again
since move to the end, too, so that there is always room.

Checkpoints read rows in order, so they are sorted then: they are dealt to buckets in a
second file, each a range of rows that memory can hold, and each is put in order.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from embark_jax._base.files import allocate

THREADS = 16
"""Threads that read a file. A page that is not in memory holds up one thread alone."""
ROWS_PER_READ = 256
"""Rows that a thread reads at a time."""
SPARE = 4
"""A log has room for one row more for each so many rows. Less would move rows more
often: with a quarter, 1.7 rows move for each that is written, by Zipf's law."""
ROWS_MOVED = 8192
"""Rows at most that are moved out of the way, or written, at a time."""
SORTED_BYTES = 256 << 20
"""Memory for a bucket of rows when they are put in order."""
FLOAT32_BYTES = 4
NO_POSITION = -1


class RowFile:
    """``[rows, values]`` float32 in a file that has no name, so that nothing of it is
    left when its process ends, however it ends.

    Attributes:
      rows: ``[rows, values]``, mapped; a read brings no neighbouring pages along.
      in_order: the same, for reading one row after the other.
    """

    def __init__(self, rows: int, values: int, folder: Path | None):
        self._row_bytes = FLOAT32_BYTES * values
        size = rows * self._row_bytes
        file = tempfile.TemporaryFile(dir=folder, prefix="rows-")  # noqa: SIM115
        weakref.finalize(self, file.close)
        self._file = file.fileno()
        allocate(self._file, size, folder or Path(tempfile.gettempdir()))
        at_random = mmap.mmap(self._file, size)
        at_random.madvise(mmap.MADV_RANDOM)
        sequential = mmap.mmap(self._file, size)
        self.rows = np.frombuffer(at_random, np.float32).reshape(rows, values)
        self.in_order = np.frombuffer(sequential, np.float32).reshape(rows, values)

    def read(self, first: int, end: int) -> np.ndarray:
        """Returns the rows from ``first`` to ``end``."""
        rows = np.empty((end - first, self.rows.shape[1]), np.float32)
        offset = first * self._row_bytes
        _check_whole(os.preadv(self._file, [rows.data], offset), rows)
        return rows

    def write(self, first: int, rows: np.ndarray) -> None:
        """Overwrites the rows from ``first`` on."""
        rows = np.ascontiguousarray(rows)
        offset = first * self._row_bytes
        _check_whole(os.pwrite(self._file, rows.data, offset), rows)

    def uncache(self, first: int, end: int) -> None:
        """Says that nobody will read these rows soon."""
        offset, size = first * self._row_bytes, (end - first) * self._row_bytes
        os.posix_fadvise(self._file, offset, size, os.POSIX_FADV_DONTNEED)


def _check_whole(moved_bytes: int, rows: np.ndarray) -> None:
    """Raises ``OSError`` if fewer bytes were read or written than all."""
    if moved_bytes != rows.nbytes:
        raise OSError(
            f"{moved_bytes} bytes of a file of rows were read or written, must be "
            f"{rows.nbytes}; look at the disk, and resume the run"
        )


class RowLog:
    """Rows in a log, as described above; a ``RowStore``.

    Args:
      rows: number of rows.
      values: number of values of a row.
      folder: folder of the files; None takes the system's for temporary files.

    Raises:
      OSError: if the disk has no room for the log and a second file of its size.
    """

    def __init__(self, rows: int, values: int, folder: Path | None):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self.rows = rows
        self._moved = min(ROWS_MOVED, -(-rows // SPARE))
        self._room = rows + -(-rows // SPARE)
        self._file = RowFile(self._room, values, folder)
        self._second = RowFile(self._room, values, folder)
        dtype = np.int32 if self._room < 1 << 31 else np.int64
        self._position = np.full(rows, NO_POSITION, dtype)  # of each row
        self._number = np.zeros(self._room, dtype)  # of the row at each position
        self._end, self._free = 0, self._room  # free positions begin at the end
        self._pool = ThreadPoolExecutor(THREADS, "row-store")

    def holds(self, numbers):
        return self._position[numbers] != NO_POSITION

    def read(self, numbers):
        rows = np.empty((len(numbers), self._file.rows.shape[1]), np.float32)
        positions = self._position[numbers]

        def take(first: int) -> None:
            at_once = slice(first, first + ROWS_PER_READ)
            np.take(self._file.rows, positions[at_once], 0, rows[at_once], mode="clip")

        list(self._pool.map(take, range(0, len(numbers), ROWS_PER_READ)))
        return rows

    def write(self, numbers, rows):
        self._position[numbers] = NO_POSITION
        for first in range(0, len(numbers), self._moved):
            at_once = slice(first, first + self._moved)
            while self._free < len(numbers[at_once]):
                self._move_next()
            self._append(numbers[at_once], rows[at_once])

    def columns(self, columns):
        self._put_in_order()
        return self._file.in_order[: self.rows, columns]

    def hold(self, numbers):
        self._position[:] = NO_POSITION
        self._position[numbers] = numbers

    def _append(self, numbers: np.ndarray, rows: np.ndarray) -> None:
        """Writes rows to the end, which has room, and goes on at the beginning."""
        while len(numbers):
            first = self._end
            count = min(len(numbers), self._room - first)
            self._file.write(first, rows[:count])
            self._position[numbers[:count]] = np.arange(first, first + count)
            self._number[first : first + count] = numbers[:count]
            self._end = (first + count) % self._room
            self._free -= count
            numbers, rows = numbers[count:], rows[count:]

    def _move_next(self) -> None:
        """Frees the positions after the free ones: their rows move to the end."""
        first = (self._end + self._free) % self._room
        end = min(first + self._moved, self._room)
        valid = self._valid(first, end)
        rows = self._file.read(first, end)[valid]
        self._file.uncache(first, end)
        self._free += end - first
        self._append(self._number[first:end][valid], rows)

    def _valid(self, first: int, end: int) -> np.ndarray:
        """Returns ``[end - first]`` bool: whether these positions have the last values
        of their rows."""
        return self._position[self._number[first:end]] == np.arange(first, end)

    def _put_in_order(self) -> None:
        """Moves each row to the position of its number."""
        numbers = np.arange(self.rows, dtype=self._position.dtype)
        is_written = self._position != NO_POSITION
        if (is_written & (self._position != numbers)).any():
            self._sort()
        self._position = np.where(is_written, numbers, NO_POSITION)
        self._number[: self.rows] = numbers
        self._end, self._free = self.rows % self._room, self._room - self.rows

    def _sort(self) -> None:
        """Copies all rows to the second file, in order, which becomes the first."""
        source, target = self._file, self._second
        size = max(1, SORTED_BYTES // source.rows[0].nbytes)
        numbers: list[list[np.ndarray]] = [[] for _ in range(0, self.rows, size)]
        counts = [0] * len(numbers)
        for first in range(0, self._room, size):
            end = min(first + size, self._room)
            valid = np.flatnonzero(self._valid(first, end))
            valid = valid[np.argsort(self._number[first + valid], kind="stable")]
            sorted_numbers = self._number[first + valid]
            rows = source.read(first, end)
            bounds = np.searchsorted(sorted_numbers, range(0, self.rows + size, size))
            for bucket in range(len(numbers)):
                bucket_rows = slice(bounds[bucket], bounds[bucket + 1])
                target.write(bucket * size + counts[bucket], rows[valid[bucket_rows]])
                numbers[bucket].append(sorted_numbers[bucket_rows])
                counts[bucket] += len(numbers[bucket][-1])
        for bucket in range(len(numbers)):
            first = bucket * size
            end = min(first + size, self.rows)
            in_order = np.zeros((end - first, rows.shape[1]), np.float32)
            index_in_bucket = np.concatenate(numbers[bucket]) - first
            in_order[index_in_bucket] = target.read(first, first + counts[bucket])
            target.write(first, in_order)
        self._file, self._second = target, source
