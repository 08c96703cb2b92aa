"""Which scores are equal: those that differ by no more than float32's rounding.

A model gives equal samples scores that may differ in the last bits: a compiled program
takes another loop for the rows of a batch that fill no vector of the processor. Order
by these bits would be the order of the file.
"""

from __future__ import annotations

import numpy as np

NEAR = 2.0**-20
"""Neighbours are no further apart than this share of themselves: 8 to 16 units in the
last place of float32."""
WIDEST = 2.0**-18
"""And a run of such neighbours is cut where it becomes wider than this share, as scores
may be dense: 10 million of them have neighbours as near throughout."""

TINY = np.finfo(np.float64).tiny


def tie_starts(scores: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns for each of ``[n]`` sorted scores whether it differs from the one before.

    Args:
      scores: ascending, or descending, from one of ``starts`` to the next.
      starts: ``[n]`` whether a score begins anew, as the first of a group does.
    """
    values = np.nan_to_num(np.asarray(scores, np.float64))  # infinities are large
    size = np.abs(values)
    with np.errstate(over="ignore"):  # of the largest numbers of either sign
        step = np.abs(np.diff(values, prepend=values[:1]))
        is_near = step <= NEAR * np.maximum(size, np.append(size[:1], size[:-1]))
        starts = starts | ~is_near
        first = values[np.maximum.accumulate(np.where(starts, np.arange(len(size)), 0))]
        pieces = np.floor(np.abs(values - first) / (WIDEST * np.abs(first) + TINY))
    return starts | (np.diff(pieces, prepend=0) != 0)


def tie_numbers(scores: np.ndarray) -> np.ndarray:
    """Returns ``[n]`` numbers that order scores, equal where these are."""
    order = np.argsort(scores, kind="stable")
    starts = np.arange(len(order)) == 0
    numbers = np.empty(len(order))
    numbers[order] = np.cumsum(tie_starts(scores[order], starts))
    return numbers
