"""The rows of one device's block of a cached storage, by number.

A row is all that belongs to it, parameters and optimizer state, one after the other:
it moves as a whole. The disk tier is the host tier in a mapped file, of which the
operating system keeps in memory what it can. The file has no name, so that nothing of
it is left when its process ends, however that ends: what lasts is the checkpoint.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from embark_jax.tables import Tier

READING_THREADS = 16
"""Of a file: a page that is not in memory holds up its reader alone."""
ROWS_PER_READ = 256
"""Of a reader, at a time."""


class StoreError(Exception):
    """Rows of a cached table have no room."""


class RowStore:
    """Rows of float32 values.

    Args:
      rows: how many; they have no defined values until they are written.
      values: of a row.
      tier: "host" or "disk".
      folder: for the file; None takes the system's for temporary files.

    Attributes:
      data: ``[rows, values]``, to be read and written as any array.

    Raises:
      StoreError: if memory or disk have no room.
    """

    def __init__(self, rows: int, values: int, tier: Tier, folder: Path | None = None):
        size = 4 * rows * values
        self._pool = None
        try:
            if tier == "host":
                self.data = np.empty((rows, values), np.float32)
                return
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder, prefix="rows-") as file:
                # Else a full disk would end the process when a page is written back.
                os.posix_fallocate(file.fileno(), 0, size)
                mapped = mmap.mmap(file.fileno(), size)
            mapped.madvise(mmap.MADV_RANDOM)  # else rows come with many neighbours
            self.data = np.frombuffer(mapped, np.float32).reshape(rows, values)
        except (OSError, MemoryError) as error:
            where = f"in {folder or tempfile.gettempdir()}" if tier == "disk" else ""
            raise StoreError(
                f"no room for {size / 1e9:,.1f} GB of rows of tier {tier} {where} "
                f"({getattr(error, 'strerror', None) or error})"
            ) from None
        self._pool = ThreadPoolExecutor(READING_THREADS, "row-store")

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """``[n, values]`` rows of these numbers."""
        rows = np.empty((len(numbers), self.data.shape[1]), np.float32)

        def take(begin: int) -> None:
            part = slice(begin, begin + ROWS_PER_READ)
            np.take(self.data, numbers[part], 0, rows[part], mode="clip")

        if self._pool is None:
            np.take(self.data, numbers, 0, rows, mode="clip")
        else:
            list(self._pool.map(take, range(0, len(numbers), ROWS_PER_READ)))
        return rows

    def write(self, numbers: np.ndarray, rows: np.ndarray) -> None:
        """Overwrites rows, ``[n, values]``; each number is there once."""
        self.data[numbers] = rows
