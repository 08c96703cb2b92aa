"""The rows of one device's block of a cached storage, by key.

A row holds its parameters and its optimizer state, one after the other, and moves as a
whole. It has a number, by which a ``RowStore`` knows it: rows of the host tier are an
array in memory, those of the disk tier a log. The key of a row of a fixed table is its
number; those of a dynamic table are numbered as they come (``KeyNumbers``). Nothing of
a store is left when its process ends; the checkpoint is what lasts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from embark_jax._base.errors import UserError
from embark_jax._base.memory import bytes_text
from embark_jax.cache.row_log import FLOAT32_BYTES, RowLog
from embark_jax.data.hashing import splitmix64
from embark_jax.plans.options import Tier

ROWS_PER_COPY = 8192
FIRST_ROWS = 1024
EXPECTED_SPARE = 16
"""One row more for each so many that are expected: hashes deal keys out unevenly."""

UNKNOWN = -1
"""Stands for the number of a key that has none."""
LEAST_CELLS = 1024
CELLS_PER_KEY = 2
KEYS_AT_ONCE = 2**18
"""Keys that are entered at a time, to bound temporaries."""


class StoreError(UserError):
    """There is no room for the rows of a cached table."""


class RowStore(Protocol):
    """Rows of float32 values, by number; one that was never written has no values. It
    is made without rows, by ``(rows, values, folder)``.

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
        """Returns these values of all rows, ``[rows, columns]``, in place until the
        next write: a checkpoint reads them, or writes them and tells ``hold``."""
        ...

    def hold(self, numbers: np.ndarray) -> None:
        """Rows of these numbers were written by ``columns``, and no others."""
        ...


class ArrayStore:
    """Rows of an array in memory; see ``RowStore``."""

    def __init__(self, rows: int, values: int, folder: Path | None = None):
        self.rows = rows
        self._values = np.zeros((rows, values), np.float32)  # memory comes with writes
        self._written = np.zeros(rows, bool)

    def holds(self, numbers):
        return self._written[numbers]

    def read(self, numbers):
        return np.take(self._values, numbers, 0, mode="clip")

    def write(self, numbers, rows):
        self._values[numbers] = rows
        self._written[numbers] = True

    def columns(self, columns):
        return self._values[:, columns]

    def hold(self, numbers):
        self._written[:] = False
        self._written[numbers] = True


STORES: dict[Tier, Callable[[int, int, Path | None], RowStore]] = {
    "host": ArrayStore,
    "disk": RowLog,
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
        return STORES[tier](rows, values, folder)
    except (OSError, MemoryError) as error:
        where = ""
        if tier == "disk":
            folder = folder or Path(tempfile.gettempdir())
            where = f" in {folder}, which take 2.5 times as much there"
        reason = getattr(error, "strerror", None) or error
        raise StoreError(
            f"no room for {bytes_text(FLOAT32_BYTES * rows * values)} of rows of "
            f"tier {tier}{where} ({reason})"
        ) from None


class KeyNumbers:
    """A growing map from keys to their numbers, in the order in which they came: a hash
    table with linear probing, through which whole batches go at once.

    Args:
      keys: ``[n]`` unique int64 keys, which get the numbers 0 to n - 1.
    """

    def __init__(self, keys: np.ndarray | None = None):
        self._keys = np.empty(0, np.int64)
        self._cells = np.full(LEAST_CELLS, UNKNOWN, np.int32)
        self._count = 0
        if keys is not None:
            self.add(np.asarray(keys, np.int64))

    def __len__(self) -> int:
        return self._count

    @property
    def keys(self) -> np.ndarray:
        """Returns ``[n]`` int64 keys by their numbers; not to be written to."""
        return self._keys[: self._count]

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Returns ``[n]`` int32 numbers of ``[n]`` int64 keys; ``UNKNOWN`` of those
        that have none."""
        numbers = np.full(len(keys), UNKNOWN, np.int32)
        left, cell = np.arange(len(keys)), self._first_cells(keys)
        while len(left):
            number = self._cells[cell]
            taken = number != UNKNOWN
            left = left[taken]
            cell = cell[taken]
            number = number[taken]
            same = self._keys[number] == keys[left]
            numbers[left[same]] = number[same]
            left, cell = left[~same], self._next(cell[~same])
        return numbers

    def add(self, keys: np.ndarray) -> None:
        """Gives the next numbers to ``[n]`` unique keys that have none, in their
        order."""
        count = self._count + len(keys)
        if count > len(self._keys):
            more = np.empty(max(count, 2 * len(self._keys)), np.int64)
            more[: self._count] = self.keys
            self._keys = more
        self._keys[self._count : count] = keys
        first, self._count = self._count, count
        if CELLS_PER_KEY * count > len(self._cells):
            del self._cells  # or else old and new ones need room together
            cells = 1 << (CELLS_PER_KEY * count).bit_length()
            self._cells = np.full(cells, UNKNOWN, np.int32)
            first = 0
        for begin in range(first, count, KEYS_AT_ONCE):
            end = min(begin + KEYS_AT_ONCE, count)
            self._insert(np.arange(begin, end, dtype=np.int32))

    def _insert(self, numbers: np.ndarray) -> None:
        """Enters keys that are not there yet."""
        left, cell = numbers, self._first_cells(self._keys[numbers])
        while len(left):
            free = self._cells[cell] == UNKNOWN
            # Of those that want the same cell one has it in the end.
            self._cells[cell[free]] = left[free]
            without = self._cells[cell] != left
            left, cell = left[without], self._next(cell[without])

    def _first_cells(self, keys: np.ndarray) -> np.ndarray:
        bits = splitmix64(keys.astype(np.int64).view(np.uint64))
        return (bits & np.uint64(len(self._cells) - 1)).astype(np.int64)

    def _next(self, cell: np.ndarray) -> np.ndarray:
        return (cell + 1) & (len(self._cells) - 1)


class KeyedRows:
    """Rows by ``[n]`` int64 keys.

    Args:
      make: makes a store of so many rows.
      rows: number of rows, whose keys are their numbers; of other keys the rows that
        are expected, for which and some more there is room. A store in memory takes
        memory as it is written to, but twice as much while it doubles.
      any_keys: whether keys are any numbers; the store then doubles whenever it is
        full.

    Raises:
      StoreError: if there is no room for a store.
    """

    def __init__(
        self, make: Callable[[int], RowStore], rows: int, any_keys: bool = False
    ):
        self._make, self._any_keys = make, any_keys
        if any_keys:
            rows = max(FIRST_ROWS, rows + rows // EXPECTED_SPARE)
        self._first_rows = rows
        self.clear()

    def clear(self) -> None:
        """Forgets all rows."""
        self._numbers, self._store = KeyNumbers(), self._make(self._first_rows)

    def truncate(self, count: int) -> None:
        """Forgets all rows but the first ones, of any keys."""
        if count < len(self):
            self._numbers = KeyNumbers(self.keys[:count])

    def __len__(self) -> int:
        """Number of rows whose keys are any."""
        return len(self._numbers)

    @property
    def keys(self) -> np.ndarray:
        """Any keys by the number of their row, ``[n]`` int64; not to be written to."""
        return self._numbers.keys

    def _find(self, keys: np.ndarray) -> np.ndarray:
        return self._numbers.find(keys) if self._any_keys else keys

    def holds(self, keys: np.ndarray) -> np.ndarray:
        """Returns ``[n]`` bool: whether the rows of these keys were written."""
        numbers = self._find(keys)
        return numbers != UNKNOWN if self._any_keys else self._store.holds(numbers)

    def read(self, keys: np.ndarray) -> np.ndarray:
        """Returns ``[n, values]``, the rows of these keys."""
        return self._store.read(self._find(keys))

    def write(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Overwrites rows with ``[n, values]``; each key must occur once.

        Raises:
          StoreError: if there is no more room; nothing has changed.
        """
        if self._any_keys:
            new = keys[~self.holds(keys)]
            self.reserve(len(self) + len(new))
            self._numbers.add(new)
        self._store.write(self._find(keys), rows)

    def reserve(self, rows: int) -> None:
        """Makes room for so many rows, unless there is."""
        if rows <= self._store.rows:
            return
        larger = self._make(max(rows, 2 * self._store.rows))
        written = self._store.columns(slice(None))
        for begin in range(0, self._store.rows, ROWS_PER_COPY):
            numbers = np.arange(begin, min(begin + ROWS_PER_COPY, self._store.rows))
            numbers = numbers[self._store.holds(numbers)]
            larger.write(numbers, written[numbers])
        self._store = larger

    def columns(self, columns: slice) -> np.ndarray:
        """Returns these values of all rows by number, ``[rows, columns]``, in place; as
        in ``RowStore``."""
        return self._store.columns(columns)

    def hold_all(self) -> None:
        """All rows, whose keys are their numbers, were written by ``columns``."""
        self._store.hold(np.arange(self._store.rows))
