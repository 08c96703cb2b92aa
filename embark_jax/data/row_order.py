"""Numbers rows by frequency, as hot rows are the first rows of a table."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def by_frequency(ids: ArrayLike, rows: int) -> np.ndarray:
    """Returns the row of each id, int64 ``[rows]``, where the most frequent id has row
    0, the next one row 1, and so on; ids that occur equally often keep their order.

    Hot rows of a table are its first ones. Where ids are in no such order, train on
    ``rows_of[ids]`` instead, and keep the array beside the data (``numpy.save``):
    whoever scores with the model needs it, too.

    Args:
      ids: ids of training samples, any shape, from 0 to ``rows - 1``; -1 where padded.
      rows: rows of the table.

    Raises:
      ValueError: if an id is no row of the table, or ids are masked.
    """
    if np.ma.is_masked(ids):
        raise ValueError("ids are a masked array, must be whole: write -1 for padding")
    ids = np.asarray(ids).reshape(-1)
    if len(ids) and not -1 <= ids.min() <= ids.max() < rows:
        raise ValueError(
            f"ids are from {ids.min()} to {ids.max()}, must be from 0 to {rows - 1}, "
            "or -1 for padding"
        )
    counts = np.bincount(ids[ids >= 0], minlength=rows)
    rows_of = np.empty(rows, np.int64)
    rows_of[np.argsort(-counts, kind="stable")] = np.arange(rows)
    return rows_of
