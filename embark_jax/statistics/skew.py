"""Skew: how often the rows of a table are looked up, and its effect on a batch.

One number describes a power law, ``Zipf``; a sample of the data gives a ``Histogram``
(``histogram.py``). The planner asks both the same questions, also about only the hot or
the cold rows of a table.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Protocol

import numpy as np

HEAD_ROWS = 1 << 14
"""Rows whose row shards are computed one by one."""
SUMMED_ROWS = 64
"""Rows whose probabilities are summed one by one."""
SINGLE_ROWS = 1 << 10
INTERVAL_RATIO = 1.01
"""Ratio by which intervals of rows grow beyond the first ``SINGLE_ROWS``; the midpoint
rule is off by (log ratio)² / 24 = 4e-6."""


class Skew(Protocol):
    """Distribution of a table's ids over its rows.

    Hashable, so that tables with equal skew are known to be alike.
    """

    @property
    def in_order(self) -> bool:
        """Says whether rows are numbered by frequency, so that the first ones are the
        most frequent."""
        ...

    def expected_unique(self, rows: int, draws: float) -> float:
        """Returns the unique rows to expect among ``draws`` ids of a table of
        ``rows``."""
        ...

    def probabilities(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the probability of a row, and the number of rows that have it, for
        classes of alike rows of a table of ``rows``."""
        ...

    def row_shard_shares(self, rows: int, row_shards: int) -> np.ndarray:
        """Returns ``[row_shards]`` share of ids that fall on each; rows go round
        robin."""
        ...

    def share(self, rows: int, begin: int, end: int) -> float:
        """Returns the share of ids that fall on rows ``[begin, end)`` of a table of
        ``rows``."""
        ...

    def within(self, rows: int, begin: int, end: int) -> Skew:
        """Returns the skew of those ids over those rows, counted from ``begin``."""
        ...


@dataclasses.dataclass(frozen=True)
class Zipf:
    """A power law: row r (from 0) is drawn with probability proportional to ``(shift +
    r + 1) ** -exponent``, each id independently; exponent 0 is uniform.

    With a ``shift``, the law describes the other rows of a table whose ``shift``
    hottest rows are elsewhere (Zipf–Mandelbrot law).
    """

    exponent: float = 0.0
    shift: int = 0

    @property
    def in_order(self) -> bool:
        return True

    def expected_unique(self, rows: int, draws: float) -> float:
        return _expected_unique(rows, draws, self)

    def probabilities(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        return row_probabilities(rows, self)

    def row_shard_shares(self, rows: int, row_shards: int) -> np.ndarray:
        head = _head_sums(min(rows, HEAD_ROWS), row_shards, self)
        tail = max(_total(rows, self) - head.sum(), 0.0)
        tail = tail if rows > HEAD_ROWS else 0.0
        shares = head + tail / row_shards
        return shares / shares.sum()

    def share(self, rows: int, begin: int, end: int) -> float:
        return _total(end - begin, self.within(rows, begin, end)) / _total(rows, self)

    def within(self, rows: int, begin: int, end: int) -> Zipf:
        return Zipf(self.exponent, self.shift + begin)


UNIFORM = Zipf(0.0)


@functools.lru_cache(maxsize=4096)
def intervals(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns midpoints (1-based ranks) and lengths of intervals that cover the
    rows."""
    head = np.arange(1, min(rows, SINGLE_ROWS) + 1, dtype=np.float64)
    if rows <= SINGLE_ROWS:
        return head, np.ones_like(head)
    number = int(np.ceil(np.log(rows / SINGLE_ROWS) / np.log(INTERVAL_RATIO)))
    edges = np.geomspace(SINGLE_ROWS + 0.5, rows + 0.5, number + 1)
    tail = np.sqrt(edges[1:] * edges[:-1])
    lengths = np.concatenate([np.ones_like(head), np.diff(edges)])
    return np.concatenate([head, tail]), lengths


@functools.lru_cache(maxsize=4096)
def row_probabilities(rows: int, zipf: Zipf) -> tuple[np.ndarray, np.ndarray]:
    """Returns ``(probability of one row, number of rows)`` for each interval of
    rows."""
    ranks, lengths = intervals(rows)
    density = (zipf.shift + ranks) ** -zipf.exponent
    return density / (density * lengths).sum(), lengths


@functools.lru_cache(maxsize=16384)
def _expected_unique(rows: int, draws: float, zipf: Zipf) -> float:
    probability, count = row_probabilities(rows, zipf)
    # 1 - (1 - p)^n, accurate for tiny p; log1p(-1) of a one-row table is -inf: fine.
    with np.errstate(divide="ignore"):
        return float(count @ -np.expm1(draws * np.log1p(-probability)))


@functools.lru_cache(maxsize=4096)
def _total(rows: int, zipf: Zipf) -> float:
    """Returns the sum of ``(shift + rank) ** -exponent`` over all rows: the first rows
    one by one, the others by the formula of Euler and Maclaurin, off by less than 1e-9
    of it."""
    first = min(rows, SUMMED_ROWS)
    shift, exponent = zipf.shift, zipf.exponent
    total = float(_head(first, zipf).sum())
    if rows == first:
        return total
    begin, end = float(shift + first), float(shift + rows)
    if exponent == 1:
        integral = math.log(end / begin)
    else:
        power = 1 - exponent
        integral = (end**power - begin**power) / power
    ends = (end**-exponent - begin**-exponent) / 2
    slopes = exponent * (begin ** -(exponent + 1) - end ** -(exponent + 1)) / 12
    return total + integral + ends + slopes


@functools.lru_cache(maxsize=16384)
def _head_sums(rows: int, row_shards: int, zipf: Zipf) -> np.ndarray:
    """Returns ``[row_shards]`` the sum over those of the first ``rows`` rows that are
    in each row shard."""
    whole = rows // row_shards * row_shards
    weights = _head(rows, zipf)
    sums = weights[:whole].reshape(-1, row_shards).sum(axis=0)
    sums[: rows - whole] += weights[whole:]
    return sums


@functools.lru_cache(maxsize=64)
def _head(rows: int, zipf: Zipf) -> np.ndarray:
    """Returns ``(shift + rank) ** -exponent`` of the first ``rows`` rows."""
    return (zipf.shift + np.arange(1, rows + 1, dtype=np.float64)) ** -zipf.exponent
