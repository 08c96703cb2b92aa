"""The rows of one device's block of a dynamic table, by key."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from embark_jax.cache.key_numbers import UNKNOWN, KeyNumbers
from embark_jax.cache.row_store import RowStore, copy_rows

FIRST_ROWS = 1024
EXPECTED_SPARE = 16
"""One row more for each so many that are expected: hashes deal keys out unevenly."""


class KeyedStore:
    """Rows by ``[n]`` int64 keys, in a store that doubles whenever it is full.

    It knows the keys of the rows that were written, and no others.

    Args:
      make: makes a store of so many rows.
      expected_rows: number of rows that it begins with room for, and some more: a store
        in memory takes memory as it is written to, but twice as much while it doubles.

    Raises:
      StoreError: if there is no room for a store.
    """

    def __init__(self, make: Callable[[int], RowStore], expected_rows: int = 0):
        self._make = make
        room = expected_rows + expected_rows // EXPECTED_SPARE
        self._first_rows = max(FIRST_ROWS, room)
        self.clear()

    def clear(self) -> None:
        """Forgets all rows."""
        self._numbers, self._store = KeyNumbers(), self._make(self._first_rows)

    def truncate(self, count: int) -> None:
        """Forgets all rows but the first ones."""
        if count < len(self):
            self._numbers = KeyNumbers(self.keys[:count])

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def keys(self) -> np.ndarray:
        """The keys by row number, ``[n]`` int64; not to be written to."""
        return self._numbers.keys

    def holds(self, keys: np.ndarray) -> np.ndarray:
        """Returns ``[n]`` bool: whether the rows of these keys were written."""
        return self._numbers.find(keys) != UNKNOWN

    def read(self, keys: np.ndarray) -> np.ndarray:
        """Returns ``[n, values]``, the rows of these keys."""
        return self._store.read(self._numbers.find(keys))

    def write(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Overwrites rows with ``[n, values]``; each key must occur once.

        Raises:
          StoreError: if there is no more room; nothing has changed.
        """
        new = keys[~self.holds(keys)]
        self.reserve(len(self) + len(new))
        self._numbers.add(new)
        self._store.write(self._numbers.find(keys), rows)

    def reserve(self, rows: int) -> None:
        """Makes room for so many rows, unless there is."""
        if rows > self._store.rows:
            larger = self._make(max(rows, 2 * self._store.rows))
            copy_rows(self._store, larger)
            self._store = larger

    def columns(self, columns: slice) -> np.ndarray:
        """Returns these values of all rows by number, ``[rows, columns]``, in place."""
        return self._store.columns(columns)
