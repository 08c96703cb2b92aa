"""Transforms of columns of numbers.

A transform is fitted once, kept in the manifest, and applied alike to the samples of
all splits and to raw rows that are scored later.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from embark_jax._base.config import Config
from embark_jax.data.columns import NumberColumn
from embark_jax.data.vocabulary import FIRST_ID, MISSING_ID


class FittedNumber(Config):
    """A fitted transform.

    Attributes:
      column: the column as the user described it.
      mean, deviation: mean and standard deviation of the training samples' numbers,
        after ``log``.
      edges: for ``quantiles``, the first number of each range but the lowest.
    """

    column: NumberColumn = NumberColumn()
    mean: float = 0.0
    deviation: float = 1.0
    edges: tuple[float, ...] = ()

    @property
    def rows(self) -> int:
        """Returns the number of rows of the table that ranges read."""
        return FIRST_ID + len(self.edges) + 1

    def values(self, numbers: pa.Array) -> np.ndarray:
        """Returns the transformed numbers, float32 ``[samples]``."""
        values, missing = _present(numbers)
        if self.column.transform == "log":
            values = np.log1p(np.maximum(values, 0))
        filling = self.mean if self.column.missing == "mean" else 0.0
        if self.column.transform == "standardize":
            values = (values - self.mean) / self.deviation
            filling = 0.0  # 0 is the mean, too
        return np.where(missing, filling, values).astype(np.float32)

    def ranges(self, numbers: pa.Array) -> np.ndarray:
        """Returns the ids of the ranges, int64 ``[samples]``."""
        values, missing = _present(numbers)
        ids = FIRST_ID + np.searchsorted(self.edges, values, side="right")
        return np.where(missing, MISSING_ID, ids)


def _present(numbers: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers as float64, and which of them are missing."""
    missing = numbers.is_null().to_numpy(zero_copy_only=False)
    values = numbers.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False)
    return values, missing
