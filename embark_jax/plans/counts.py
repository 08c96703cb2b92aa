"""Counts that users give: whole numbers within limits, and numbers of steps or days."""

from __future__ import annotations

import numbers
import re
from typing import Any

DAYS = r"[1-9]\d{0,5}d"
"""Pattern of a number of days, such as "7d"."""
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


def check_steps_or_days(what: str, value: Any) -> None:
    """Raises ``ValueError`` if a value is neither a number of steps nor of days."""
    if not isinstance(value, str):
        whole(what, value)
    elif not re.fullmatch(DAYS, value):
        raise ValueError(
            f"{what} is {value!r}, must be a whole number of steps >= 1, or of days, "
            "such as '7d'"
        )
