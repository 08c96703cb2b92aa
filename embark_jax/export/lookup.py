"""The rows of a table by id, in NumPy: in 8 or 32 bits, by row number or by key."""

from __future__ import annotations

import dataclasses

import numpy as np

from embark_jax.plans.options import Pooling, RowFormat
from embark_jax.plans.tables import DYNAMIC_KEYS, PADDING_ID

INT8_MAX = 127
COMPARED_ROWS = 2**20
"""Number of rows that are compared at once."""


@dataclasses.dataclass(frozen=True)
class LookupTable:
    """Rows that ids select: ``table[ids]``.

    Attributes:
      values: ``[n, dim]`` float32, or int8.
      scales: ``[n]`` float32 of int8 values: those of row i are ``scales[i] *
        values[i]``.
      keys: ``[n]`` int64, ascending: the ids of the rows; the row of another id is
        zeros. None says that ids are row numbers.
    """

    values: np.ndarray
    scales: np.ndarray | None = None
    keys: np.ndarray | None = None

    @property
    def ids(self) -> int:
        """Number of ids; they count from 0."""
        return len(self.values) if self.keys is None else DYNAMIC_KEYS

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the ``[…, dim]`` float32 rows of these numbers, which are no keys."""
        values = self.values[numbers]
        if self.scales is None:
            return values
        return values * self.scales[numbers][..., None]

    def __getitem__(self, ids: np.ndarray) -> np.ndarray:
        """Returns the ``[…, dim]`` float32 rows of ``[…]`` ids."""
        if self.keys is None:
            return self.rows(ids)
        numbers, present = self.find(ids)
        rows = np.zeros((*ids.shape, self.values.shape[1]), np.float32)
        rows[present] = self.rows(numbers[present])
        return rows

    def find(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns for each id the number of its row, and whether it has one."""
        if self.keys is None:
            return ids, ids < len(self.values)
        numbers = np.searchsorted(self.keys, ids)
        present = numbers < len(self.keys)
        present[present] = self.keys[numbers[present]] == ids[present]
        return numbers, present

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the contents of a file of the table: ``rows``, ``scales`` of rows in
        8 bits, and ``keys``."""
        arrays = {"rows": self.values, "scales": self.scales, "keys": self.keys}
        return {name: array for name, array in arrays.items() if array is not None}

    def in_format(self, row_format: RowFormat) -> LookupTable:
        """Returns the table, whose rows are float32, in a format.

        In int8 the largest absolute value of a row is 127 scales; others are rounded to
        the nearest multiple of it, so that they change by half of it at most.
        """
        if row_format == "float32":
            return self
        largest = np.abs(self.values).max(axis=1, initial=0)
        scales = (largest / INT8_MAX).astype(np.float32)
        divisors = np.where(scales > 0, scales, 1)  # also of what float32 rounds to 0
        values = np.rint(self.values / divisors[:, None]).clip(-INT8_MAX, INT8_MAX)
        return LookupTable(values.astype(np.int8), scales, self.keys)

    def changes_since(self, before: LookupTable) -> LookupTable:
        """Returns the rows that differ from those of an earlier table of the same
        format, bit by bit, with their ids as keys. Of a dynamic table, rows of keys
        that it no longer has become zeros."""
        ids = np.arange(len(self.values)) if self.keys is None else self.keys
        blocks = [
            self._differ(before, ids, range(start, start + COMPARED_ROWS))
            for start in range(0, len(ids), COMPARED_ROWS)
        ]
        changed = np.flatnonzero(np.concatenate([np.empty(0, bool), *blocks]))
        scales = None if self.scales is None else self.scales[changed]
        changes = LookupTable(self.values[changed], scales, ids[changed])
        if before.keys is None:
            return changes
        gone = np.setdiff1d(before.keys, ids)
        zeros = np.zeros((len(gone), self.values.shape[1]), self.values.dtype)
        scales = None if self.scales is None else np.zeros(len(gone), np.float32)
        return LookupTable(zeros, scales, gone).updated(changes)

    def updated(self, changes: LookupTable) -> LookupTable:
        """Returns the table with the rows of ``changes``, which has keys. Rows of a
        table that is not dynamic are changed in place; new ones follow its last."""
        numbers = changes.keys
        assert numbers is not None
        if self.keys is None:
            keys, kept, changed = None, slice(len(self.values)), numbers
            rows = max(len(self.values), *(numbers[-1:] + 1))
        else:
            keys = np.union1d(self.keys, numbers)
            kept, changed = (np.searchsorted(keys, k) for k in (self.keys, numbers))
            rows = len(keys)

        def merged(old: np.ndarray, new: np.ndarray) -> np.ndarray:
            array = old
            if rows > len(old):
                array = np.zeros((rows, *old.shape[1:]), old.dtype)
                array[kept] = old
            array[changed] = new
            return array

        values = merged(self.values, changes.values)
        if self.scales is None or changes.scales is None:
            return LookupTable(values, None, keys)
        return LookupTable(values, merged(self.scales, changes.scales), keys)

    def _differ(self, before: LookupTable, ids: np.ndarray, block: range) -> np.ndarray:
        """Returns which rows of a block differ from those before, or are new."""
        numbers, present = before.find(ids[block.start : block.stop])
        changed = ~present
        rows = self.rows(block.start + np.flatnonzero(present))
        earlier = before.rows(numbers[present])
        differ = rows.view(np.uint32) != earlier.view(np.uint32)
        changed[present] = differ.any(axis=1)
        return changed


def pooled(
    table: LookupTable, pooling: Pooling, ids: np.ndarray, weights: np.ndarray | None
) -> np.ndarray:
    """Returns a feature's pooled rows: ``[samples, dim]``, or with "none" the sequence.

    Args:
      ids: ``[samples, hotness]``, padded with -1.
      weights: factors of the rows, ``[samples, hotness]``.
    """
    present = ids != PADDING_ID
    factors = present.astype(np.float32)
    if weights is not None:
        factors = factors * weights.astype(np.float32)
    if pooling == "mean":
        total = factors.sum(axis=1, keepdims=True)
        factors = np.divide(factors, total, np.zeros_like(factors), where=total != 0)
    rows = table[np.where(present, ids, 0)]
    if pooling == "none":
        return rows * factors[:, :, None]
    if ids.shape[1] == 1:
        return rows[:, 0] * factors
    return (factors[:, None] @ rows)[:, 0]
