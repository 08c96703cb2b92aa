"""Hot rows of all tables by one threshold of frequency, as FAE chooses them
(https://arxiv.org/abs/2103.00686).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from embark_jax.statistics.accesses import Statistics

LARGEST_BUDGET_BYTES = 4 << 30


@dataclasses.dataclass(frozen=True)
class HotRows:
    """The rows that are hot.

    Attributes:
      rows: number of the most frequent rows, by table.
      accesses: rows with at least so many accesses in the sample are all hot.
    """

    rows: Mapping[str, int]
    accesses: float


def within_budget(
    statistics: Statistics, row_bytes: Mapping[str, int], budget_bytes: int
) -> HotRows:
    """Returns the most frequent rows of all tables together whose bytes do not exceed a
    budget; none of a table whose rows are not numbered by frequency, as hot rows are
    the first ones.

    Args:
      statistics: accesses in a sample of the data.
      row_bytes: bytes of a row of each table that takes part.
      budget_bytes: bytes of each device.
    """
    bins = []
    for name in row_bytes:
        histogram = statistics.tables[name].histogram
        for rows, accesses in histogram.bins:
            possible = rows if histogram.in_order else 0
            bins.append((accesses / rows, name, rows, possible))
    hot = dict.fromkeys(row_bytes, 0)
    least, complete = float("inf"), True
    for accesses, name, rows, possible in sorted(bins, key=lambda item: -item[0]):
        fitting = min(possible, budget_bytes // row_bytes[name])
        hot[name] += fitting
        budget_bytes -= fitting * row_bytes[name]
        complete &= fitting == rows
        least = accesses if complete else least
        if fitting < possible:
            break
    return HotRows(hot, least)


def budgets(table_bytes: int) -> list[int]:
    """Returns budgets that are worth a look: all bytes of the tables or 4 GiB, if that
    is less, and their halves, quarters and so on."""
    largest = min(table_bytes, LARGEST_BUDGET_BYTES)
    return sorted({max(1, largest >> halvings) for halvings in range(10)})
