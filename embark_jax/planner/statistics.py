"""Skew: how often the rows of a table are looked up, and what that makes of a batch.

A power law, ``Zipf``, is known by one number; a sample of the data gives a
``Histogram`` (``planner/histogram.py``). The planner asks both the same two questions.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Protocol

import numpy as np

from embark_jax.planner.dealing import row_shards_of

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

    def row_shard_shares(
        self, rows: int, row_shards: int, dealt: bool = True
    ) -> np.ndarray:
        """``[row_shards]`` share of ids that fall on each row shard, of rows that are
        dealt to them (``planner/dealing.py``), or else go around in turn."""
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
        return _expected_unique(rows, draws, self.exponent)

    def row_shard_shares(
        self, rows: int, row_shards: int, dealt: bool = True
    ) -> np.ndarray:
        return _row_shard_shares(rows, row_shards, self.exponent, dealt)


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
def _expected_unique(rows: int, draws: float, exponent: float) -> float:
    probability, count = row_probabilities(rows, exponent)
    # 1 - (1 - p)^n, accurate for tiny p; log1p(-1) of a one-row table is -inf: fine.
    with np.errstate(divide="ignore"):
        seen = -np.expm1(draws * np.log1p(-probability))
    return float((count * seen).sum())


@functools.lru_cache(maxsize=4096)
def _row_shard_shares(
    rows: int, row_shards: int, exponent: float, dealt: bool
) -> np.ndarray:
    probability, count = row_probabilities(rows, exponent)
    head = min(rows, HEAD_ROWS)
    ids = np.arange(head)
    held_by = row_shards_of(ids, rows, row_shards) if dealt else ids % row_shards
    shares = np.bincount(held_by, weights=probability[:head], minlength=row_shards)
    return shares + (probability[head:] * count[head:]).sum() / row_shards
