"""Skew: how often the rows of a table are looked up, and what that makes of a batch.

A power law, ``Zipf``, is known by one number; a sample of the data gives a
``Histogram`` (``planner/histogram.py``). The planner asks both the same two questions.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Protocol

import numpy as np

from embark_jax.planner.dealing import Dealing

HEAD_ROWS = 1 << 14
TAIL_INTERVALS = 256
"""The tail's midpoint rule is off by (log interval ratio)² / 24: below 2e-4 for a table
of 10 billion rows."""


class Skew(Protocol):
    """How the ids of a table are distributed over its rows.

    Hashable, so that tables with equal skew are known to be alike.
    """

    def expected_unique(self, rows: int, draws: float) -> float:
        """Different rows to expect among ``draws`` ids, of a table of ``rows``."""
        ...

    def first_shares(self, rows: int, first: int) -> np.ndarray:
        """``[first]`` share of ids that fall on each of the first rows, of which
        there are at most ``HEAD_ROWS``."""
        ...

    def row_shard_shares(self, rows: int, dealing: Dealing) -> np.ndarray:
        """``[row_shards]`` share of ids that fall on each row shard."""
        ...

    def row_shard_unique(self, rows: int, draws: float, dealing: Dealing) -> np.ndarray:
        """``[row_shards]`` different rows of each to expect among ``draws`` ids."""
        ...


@dataclasses.dataclass(frozen=True)
class Zipf:
    """Row r (from 0) is drawn with probability proportional to
    ``(r + 1) ** -exponent``, each id independently; exponent 0 is uniform.

    Tables may have billions of rows: the head is summed row by row, the tail over
    geometrically growing intervals.
    """

    exponent: float = 0.0

    def expected_unique(self, rows: int, draws: float) -> float:
        return float(_seen(rows, draws, self.exponent).sum())

    def first_shares(self, rows: int, first: int) -> np.ndarray:
        return row_probabilities(rows, self.exponent)[0][:first]

    def row_shard_shares(self, rows: int, dealing: Dealing) -> np.ndarray:
        return _row_shard_shares(rows, self.exponent, dealing)

    def row_shard_unique(self, rows: int, draws: float, dealing: Dealing) -> np.ndarray:
        seen = _seen(rows, draws, self.exponent)
        if dealing.full:
            return _of_row_shards(rows, seen, dealing)
        # Where rows go around in turn, and the first are dealt, all have about as many.
        return seen.sum() * dealing.row_shares(rows)


UNIFORM = Zipf(0.0)


def intervals(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Midpoints (1-based ranks) of intervals that cover the rows, and their lengths."""
    head = np.arange(1, min(rows, HEAD_ROWS) + 1, dtype=np.float64)
    if rows <= HEAD_ROWS:
        return head, np.ones_like(head)
    edges = np.geomspace(HEAD_ROWS + 0.5, rows + 0.5, TAIL_INTERVALS + 1)
    tail = np.sqrt(edges[1:] * edges[:-1])
    lengths = np.concatenate([np.ones_like(head), np.diff(edges)])
    return np.concatenate([head, tail]), lengths


@functools.lru_cache(maxsize=256)
def row_probabilities(rows: int, exponent: float) -> tuple[np.ndarray, np.ndarray]:
    """``(probability of one row, number of rows)`` for each interval of rows."""
    ranks, lengths = intervals(rows)
    density = ranks**-exponent
    return density / (density * lengths).sum(), lengths


@functools.lru_cache(maxsize=4096)
def _seen(rows: int, draws: float, exponent: float) -> np.ndarray:
    """``[intervals]`` different rows to expect in each."""
    probability, count = row_probabilities(rows, exponent)
    # 1 - (1 - p)^n, accurate for tiny p; log1p(-1) of a one-row table is -inf: fine.
    with np.errstate(divide="ignore"):
        seen = -np.expm1(draws * np.log1p(-probability))
    return count * seen


@functools.lru_cache(maxsize=4096)
def _row_shard_shares(rows: int, exponent: float, dealing: Dealing) -> np.ndarray:
    probability, count = row_probabilities(rows, exponent)
    return _of_row_shards(rows, probability * count, dealing)


def _of_row_shards(rows: int, values: np.ndarray, dealing: Dealing) -> np.ndarray:
    """``[row_shards]`` sums of ``[intervals]`` values over the rows of each."""
    head = np.arange(min(rows, HEAD_ROWS))
    row_shards, full = dealing.row_shards, dealing.full
    found = np.bincount(
        dealing.row_shards_of(head), values[: len(head)], minlength=row_shards
    )
    tail = values[len(head) :]
    _, lengths = intervals(rows)
    ends = np.cumsum(lengths)[len(head) :]
    cold = np.clip((ends - dealing.cold) / lengths[len(head) :], 0, 1) @ tail
    if not full:
        return found + tail.sum() / row_shards
    found[full:] += (tail.sum() - cold) / (row_shards - full)
    found[:full] += cold / full
    return found
