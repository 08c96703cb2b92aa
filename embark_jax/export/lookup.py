"""The rows of a table by id, in NumPy, and how they lie in safetensors files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from embark_jax.plans.options import Pooling
from embark_jax.plans.tables import DYNAMIC_KEYS, PADDING_ID


@dataclasses.dataclass(frozen=True)
class LookupTable:
    """Rows that ids select: ``table[ids]``.

    Attributes:
      rows: ``[n, dim]`` float32.
      keys: ``[n]`` int64, ascending: the ids of the rows; the row of another id is
        zeros. None says that ids are row numbers.
    """

    rows: np.ndarray
    keys: np.ndarray | None = None

    @property
    def ids(self) -> int:
        """Number of ids; they count from 0."""
        return len(self.rows) if self.keys is None else DYNAMIC_KEYS

    def __getitem__(self, ids: np.ndarray) -> np.ndarray:
        """Returns the ``[…, dim]`` float32 rows of ``[…]`` ids."""
        if self.keys is None:
            return self.rows[ids]
        numbers = np.searchsorted(self.keys, ids)
        present = numbers < len(self.keys)
        present[present] = self.keys[numbers[present]] == ids[present]
        rows = np.zeros((*ids.shape, self.rows.shape[1]), np.float32)
        rows[present] = self.rows[numbers[present]]
        return rows

    def write(self, path: Path) -> None:
        """Writes the table to a safetensors file, as ``rows`` and ``keys``."""
        arrays = {"rows": self.rows, "keys": self.keys}
        write_arrays(
            path, {n: array for n, array in arrays.items() if array is not None}
        )

    @classmethod
    def read(cls, path: Path) -> LookupTable:
        """Reads what ``write`` wrote."""
        arrays = load_file(path)
        return cls(arrays["rows"], arrays.get("keys"))


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays to a safetensors file."""
    path.touch()
    mode = path.stat().st_mode
    save_file({name: np.asarray(a, order="C") for name, a in arrays.items()}, path)
    path.chmod(mode)  # the library makes the file readable to its owner only


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
