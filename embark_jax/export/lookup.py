"""The rows of a table by id, in NumPy: in 8 or 32 bits, by row number or by key."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from embark_jax.export.arrays import checked_array, read_arrays
from embark_jax.export.description import (
    Description,
    ExportError,
    InitialRows,
    table_file,
)
from embark_jax.export.initial_rows import draw_initial_rows
from embark_jax.plans.options import Pooling, RowFormat
from embark_jax.plans.tables import DYNAMIC_KEYS, PADDING_ID

ROWS = "rows"
SCALES = "scales"
KEYS = "keys"
"""Names of the arrays in a table's file: scales are there of rows in 8 bits, keys (or
row numbers) of a dynamic table, and of changes."""
INT8_MAX = 127


class LookupTable:
    """Rows that ids select: ``table[ids]``.

    Args:
      values: ``[n, dim]`` float32, or int8.
      scales: ``[n]`` float32 of int8 values: those of row i are ``scales[i] *
        values[i]``.
      keys: ``[n]`` int64, ascending: the ids of the rows. None says that ids are row
        numbers.
      initial: rows of all other keys.
    """

    def __init__(
        self,
        values: np.ndarray,
        scales: np.ndarray | None = None,
        keys: np.ndarray | None = None,
        initial: InitialRows | None = None,
    ):
        self.values, self.scales = values, scales
        self.keys, self.initial = keys, initial

    @property
    def ids(self) -> int:
        """Number of ids; they count from 0."""
        return len(self.values) if self.keys is None else DYNAMIC_KEYS

    @property
    def row_format(self) -> RowFormat:
        """Format of the rows."""
        return "float32" if self.scales is None else "int8"

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the ``[…, dim]`` float32 rows of ``[…]`` row numbers."""
        values = self.values.take(numbers, axis=0)  # a fourth of the time of [numbers]
        if self.scales is None:
            return values
        return values * self.scales.take(numbers)[..., None]

    def __getitem__(self, ids: np.ndarray) -> np.ndarray:
        """Returns the ``[…, dim]`` float32 rows of ``[…]`` ids."""
        if self.keys is None:
            return self.rows(ids)
        numbers, present = self.find(ids)
        rows = np.empty((*ids.shape, self.values.shape[1]), np.float32)
        rows[present] = self.rows(numbers[present])
        if self.initial is not None:
            dim = self.values.shape[1]
            rows[~present] = draw_initial_rows(self.initial, ids[~present], dim)
        return rows

    def update(self, changes: LookupTable, rows: int | None = None) -> None:
        """Takes over the rows of ``changes``, which has keys, in the same format.

        Args:
          changes: the rows that have changed.
          rows: number of rows of a table that may have had fewer; None leaves it.
        """
        assert changes.keys is not None
        if self.keys is None:
            if rows is not None:
                self.values = _grown(self.values, rows)
                if self.scales is not None:
                    self.scales = _grown(self.scales, rows)
            self.values[changes.keys] = changes.values
            if self.scales is not None:
                self.scales[changes.keys] = changes.scales
            return
        numbers, present = self.find(changes.keys)
        keys = np.concatenate([self.keys, changes.keys[~present]])
        order = np.argsort(keys, kind="stable")

        def merged(array, changed):
            array[numbers[present]] = changed[present]
            if present.all():
                return array
            return np.concatenate([array, changed[~present]])[order]

        self.values = merged(self.values, changes.values)
        if self.scales is not None:
            self.scales = merged(self.scales, changes.scales)
        self.keys = keys[order]

    def arrays(self, row_format: RowFormat) -> dict[str, np.ndarray]:
        """Returns the contents of a file of the table, whose rows are float32 here."""
        arrays = {} if self.keys is None else {KEYS: self.keys}
        if row_format == "float32":
            return arrays | {ROWS: self.values}
        values, scales = quantized(self.values)
        return arrays | {ROWS: values, SCALES: scales}

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns for each key the number of its row, and whether it has one."""
        assert self.keys is not None
        numbers = np.searchsorted(self.keys, keys)
        present = numbers < len(self.keys)
        present[present] = self.keys[numbers[present]] == keys[present]
        return numbers, present


def _grown(array: np.ndarray, rows: int) -> np.ndarray:
    """Returns an array with more rows, of zeros."""
    if len(array) == rows:
        return array
    more = np.zeros((rows - len(array), *array.shape[1:]), array.dtype)
    return np.concatenate([array, more])


def quantized(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns int8 ``[n, dim]`` and float32 scales ``[n]`` of float32 rows.

    The largest absolute value of a row is 127 scales; others are rounded to the nearest
    multiple of it, so that they change by half of it at most.
    """
    largest = np.abs(rows).max(axis=1, initial=0)
    scales = (largest / INT8_MAX).astype(np.float32)
    divisors = np.where(scales > 0, scales, 1)  # also where it is too small for float32
    values = np.rint(rows / divisors[:, None]).clip(-INT8_MAX, INT8_MAX)
    return values.astype(np.int8), scales


def read_table(folder: Path, description: Description, name: str) -> LookupTable:
    """Returns the rows of a table of an export; of one made with ``--since``, the rows
    that have changed, by key or row number.

    Raises:
      ExportError: if they are not what the description says.
    """
    table, path = description.tables[name], folder / table_file(name)
    arrays = read_arrays(path)
    has_keys = table.rows is None or description.since is not None
    shape = None if has_keys else table.rows, table.dim
    values = checked_array(path, arrays, ROWS, shape, description.row_format)
    scales = keys = None
    if description.row_format == "int8":
        scales = checked_array(path, arrays, SCALES, values.shape[:1], "float32")
    if has_keys:
        keys = checked_array(path, arrays, KEYS, values.shape[:1], "int64")
        ascending, end = (keys[1:] > keys[:-1]).all(), table.rows
        fits = end is None or not len(keys) or (keys[0] >= 0 and keys[-1] < end)
        if not (ascending and fits):
            limits = "" if end is None else f", and from 0 to {end - 1:,}"
            raise ExportError(f"{path}: {KEYS} must be ascending{limits}")
    return LookupTable(values, scales, keys, table.initial)


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
