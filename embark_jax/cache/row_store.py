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
from typing import NamedTuple, Protocol

import numpy as np

from embark_jax._base.errors import UserError
from embark_jax.plans.options import Tier

THREADS = 16
"""Threads that read or write a file. A page that is not in memory holds up one thread
alone; to write a part of a page is to read it first."""
ROWS_AT_ONCE = 256
"""Rows that a thread reads or writes at a time."""
ROWS_PER_COPY = 8192
FLOAT32_BYTES = 4


class StoreError(UserError):
    """There is no room for the rows of a cached table."""


class RowStore(Protocol):
    """Rows of float32 values; one that was never written has no values.

    Attributes:
      rows: number of rows.
    """

    rows: int

    def holds(self, numbers: np.ndarray) -> np.ndarray:
        """Returns ``[n]`` bool: whether the rows with these numbers were written."""
        ...

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """Returns ``[n, values]``, the rows with these numbers."""
        ...

    def write(self, numbers: np.ndarray, rows: np.ndarray) -> None:
        """Overwrites rows with ``[n, values]``; each number must occur once."""
        ...

    def columns(self, columns: slice) -> np.ndarray:
        """Returns these values of all rows, ``[rows, columns]``, in place: a checkpoint
        reads them, or writes them and says so to ``hold``."""
        ...

    def hold(self, numbers: np.ndarray) -> None:
        """Rows of these numbers were written by ``columns``, and no others."""
        ...


class ArrayStore:
    """Rows of an array in memory, or in a file mapped to it; see ``RowStore``.

    Args:
      values: ``[rows, values]`` float32 array.
      pool: threads that move rows; None moves them in the caller's.
    """

    def __init__(self, values: np.ndarray, pool: ThreadPoolExecutor | None = None):
        self.rows = len(values)
        self._values, self._pool = values, pool
        self._held = np.zeros(self.rows, bool)

    def holds(self, numbers):
        return self._held[numbers]

    def read(self, numbers):
        rows = np.empty((len(numbers), self._values.shape[1]), np.float32)

        def take(rows_at_once: slice) -> None:
            np.take(
                self._values, numbers[rows_at_once], 0, rows[rows_at_once], mode="clip"
            )

        self._in_slices(take, len(numbers))
        return rows

    def write(self, numbers, rows):
        def put(rows_at_once: slice) -> None:
            self._values[numbers[rows_at_once]] = rows[rows_at_once]

        self._in_slices(put, len(numbers))
        self._held[numbers] = True

    def _in_slices(self, move: Callable[[slice], None], count: int) -> None:
        """Moves all rows at once in memory, and slice by slice in threads on disk."""
        if self._pool is None:
            move(slice(count))
            return
        begins = range(0, count, ROWS_AT_ONCE)
        slices = [slice(begin, begin + ROWS_AT_ONCE) for begin in begins]
        list(self._pool.map(move, slices))

    def columns(self, columns):
        return self._values[:, columns]

    def hold(self, numbers):
        self._held[:] = False
        self._held[numbers] = True


def _in_memory(rows: int, values: int, folder: Path | None) -> RowStore:
    # Pages take memory when they are first written.
    return ArrayStore(np.zeros((rows, values), np.float32))


def _on_disk(rows: int, values: int, folder: Path | None) -> RowStore:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    size = FLOAT32_BYTES * rows * values
    with tempfile.TemporaryFile(dir=folder, prefix="rows-") as file:
        # Otherwise a full disk kills the process when a page is written back.
        os.posix_fallocate(file.fileno(), 0, size)
        mapped = mmap.mmap(file.fileno(), size)
    # Otherwise a read brings many neighbours along.
    mapped.madvise(mmap.MADV_RANDOM)
    array = np.frombuffer(mapped, np.float32).reshape(rows, values)
    return ArrayStore(array, ThreadPoolExecutor(THREADS, "row-store"))


class StoreKind(NamedTuple):
    """A kind of row store.

    Attributes:
      make: ``(rows, values, folder) -> store``, without rows.
      in_memory: whether its rows take the host's memory.
    """

    make: Callable[[int, int, Path | None], RowStore]
    in_memory: bool


STORES: dict[Tier, StoreKind] = {
    "host": StoreKind(_in_memory, in_memory=True),
    "disk": StoreKind(_on_disk, in_memory=False),
}
"""The registry of row stores, by tier."""


def make_store(
    tier: Tier, rows: int, values: int, folder: Path | None = None
) -> RowStore:
    """Makes a store without rows.

    Args:
      tier: tier of the rows.
      rows: number of rows.
      values: number of values of a row.
      folder: folder of files; None takes the system's folder for temporary files.

    Raises:
      StoreError: if memory or disk have no room.
    """
    try:
        return STORES[tier].make(rows, values, folder)
    except (OSError, MemoryError) as error:
        where = f" in {folder or tempfile.gettempdir()}" if tier == "disk" else ""
        reason = getattr(error, "strerror", None) or error
        raise StoreError(
            f"no room for {FLOAT32_BYTES * rows * values / 1e9:,.1f} GB of rows of "
            f"tier {tier}{where} ({reason})"
        ) from None


def copy_rows(store: RowStore, larger: RowStore) -> None:
    """Gives a store, of no fewer rows, all rows of another."""
    for begin in range(0, store.rows, ROWS_PER_COPY):
        numbers = np.arange(begin, min(begin + ROWS_PER_COPY, store.rows))
        held = numbers[store.holds(numbers)]
        larger.write(held, store.read(held))
