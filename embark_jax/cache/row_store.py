"""The rows of one device's block of a cached storage, by number.

A row holds its parameters and its optimizer state, one after the other, and moves as a
whole. The disk tier is the host tier in a mapped file, of which the operating system
keeps in memory what it can. The file has no name, so nothing of it is left when its
process ends, however it ends; the checkpoint is what lasts.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from embark_jax._base.errors import UserError
from embark_jax.plans.options import Tier

THREADS = 16
"""Threads that read or write a file. A page that is not in memory holds up one thread
alone; to write a part of a page is to read it first."""
ROWS_AT_ONCE = 256
"""Rows that a thread reads or writes at a time."""
ROWS_PER_COPY = 8192


class StoreError(UserError):
    """There is no room for the rows of a cached table."""


class RowStore:
    """Rows of float32 values.

    Args:
      rows: number of rows; none is written yet.
      values: number of values of a row.
      tier: "host" or "disk".
      folder: folder of the file; None takes the system's folder for temporary files.

    Attributes:
      data: ``[rows, values]``, read and written like any array.
      written: ``[rows]`` bool, whether a row was written; other rows have no defined
        values.

    Raises:
      StoreError: if memory or disk have no room.
    """

    def __init__(self, rows: int, values: int, tier: Tier, folder: Path | None = None):
        size = 4 * rows * values
        self._pool = None
        self.written = np.zeros(rows, bool)
        try:
            if tier == "host":  # pages take memory when they are first written
                self.data = np.zeros((rows, values), np.float32)
                return
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder, prefix="rows-") as file:
                # Otherwise a full disk kills the process when a page is written back.
                os.posix_fallocate(file.fileno(), 0, size)
                mapped = mmap.mmap(file.fileno(), size)
            mapped.madvise(
                mmap.MADV_RANDOM
            )  # otherwise a read brings many neighbours along
            self.data = np.frombuffer(mapped, np.float32).reshape(rows, values)
        except (OSError, MemoryError) as error:
            where = f"in {folder or tempfile.gettempdir()}" if tier == "disk" else ""
            raise StoreError(
                f"no room for {size / 1e9:,.1f} GB of rows of tier {tier} {where} "
                f"({getattr(error, 'strerror', None) or error})"
            ) from None
        self._pool = ThreadPoolExecutor(THREADS, "row-store")

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """Returns ``[n, values]``, the rows with these numbers."""
        rows = np.empty((len(numbers), self.data.shape[1]), np.float32)

        def take(rows_at_once: slice) -> None:
            np.take(
                self.data, numbers[rows_at_once], 0, rows[rows_at_once], mode="clip"
            )

        self._in_slices(take, len(numbers))
        return rows

    def write(self, numbers: np.ndarray, rows: np.ndarray) -> None:
        """Overwrites rows with ``[n, values]``; each number must occur once."""

        def put(rows_at_once: slice) -> None:
            self.data[numbers[rows_at_once]] = rows[rows_at_once]

        self._in_slices(put, len(numbers))
        self.written[numbers] = True

    def _in_slices(self, move: Callable[[slice], None], count: int) -> None:
        """Moves all rows at once in memory, and slice by slice in threads on disk."""
        if self._pool is None:
            move(slice(count))
            return
        begins = range(0, count, ROWS_AT_ONCE)
        slices = [slice(begin, begin + ROWS_AT_ONCE) for begin in begins]
        list(self._pool.map(move, slices))

    def forget(self, numbers: np.ndarray) -> None:
        """Rows of these numbers are as if they had never been written."""
        self.written[numbers] = False

    def copy_to(self, larger: RowStore) -> None:
        """Gives another store, of more rows, all of its own."""
        for begin in range(0, len(self.data), ROWS_PER_COPY):
            rows_at_once = slice(begin, begin + ROWS_PER_COPY)
            held = np.flatnonzero(self.written[rows_at_once]) + begin
            larger.write(held, self.data[held])
