"""Numbers of keys, in the order in which they came.

Rows of a dynamic table have a number each, by which devices know them. A hash table
with linear probing leads from keys to numbers; whole batches go through it at once.
"""

from __future__ import annotations

import numpy as np

from embark_jax.data.hashing import splitmix64

UNKNOWN = -1
"""Stands for the number of a key that has none."""
LEAST_CELLS = 1024
CELLS_PER_KEY = 2
KEYS_AT_ONCE = 2**18
"""Keys that are entered at a time, to bound temporaries."""


class KeyNumbers:
    """A growing map from keys to their numbers.

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
            held = number != UNKNOWN
            left = left[held]
            cell = cell[held]
            number = number[held]
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
