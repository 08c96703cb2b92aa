"""Counts that users give: whole numbers within limits."""

from __future__ import annotations

import numbers
from typing import Any

MOST = 2**31 - 1
MOST_DIM = 2**16
MOST_DEVICES = 2**16
MOST_ROWS, MOST_BATCH = 2**42, 2**44
"""Largest counts: of all, dims, devices, rows, and samples of a batch. The bytes of
such a table are a 64-bit integer, and no machine has them."""


def whole(what: str, value: Any, limit: int = MOST) -> int:
    """Returns a count, Python's or NumPy's, as an int.

    Raises:
      ValueError: if it is not a whole number, below 1 or above ``limit``.
    """
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_whole or value < 1:
        raise ValueError(f"{what} is {value!r:.80}, must be a whole number >= 1")
    count = int(value)
    if count > limit:
        digits = f"{count:,}" if count < 10**30 else "a number of more than 30 digits"
        raise ValueError(f"{what} is {digits}, must be at most {limit:,}")
    return count
