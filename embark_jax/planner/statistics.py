"""What a power law says about the ids of a batch.

Row r (from 0) of a table is drawn with probability proportional to
``(r + 1) ** -exponent``; exponent 0 is uniform. Tables may have billions of rows: the
head is summed row by row, the tail over geometrically growing intervals.
"""

from __future__ import annotations

import functools

import numpy as np

HEAD_ROWS = 1 << 14
TAIL_INTERVALS = 256
"""The tail's midpoint rule is off by (log interval ratio)² / 24: below 2e-4 for a table
of 10 billion rows."""


def _intervals(rows: int) -> tuple[np.ndarray, np.ndarray]:
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
    ranks, lengths = _intervals(rows)
    density = ranks**-exponent
    return density / (density * lengths).sum(), lengths


@functools.lru_cache(maxsize=4096)
def expected_unique(rows: int, draws: float, exponent: float) -> float:
    """Expected number of different rows among ``draws`` independent draws."""
    probability, count = row_probabilities(rows, exponent)
    # 1 - (1 - p)^n, accurate for tiny p; log1p(-1) of a one-row table is -inf: fine.
    with np.errstate(divide="ignore"):
        seen = -np.expm1(draws * np.log1p(-probability))
    return float((count * seen).sum())


@functools.lru_cache(maxsize=4096)
def row_shard_shares(rows: int, row_shards: int, exponent: float) -> np.ndarray:
    """``[row_shards]`` share of draws that fall on rows ``r % row_shards == j``."""
    probability, count = row_probabilities(rows, exponent)
    head = min(rows, HEAD_ROWS)
    shares = np.bincount(
        np.arange(head) % row_shards, weights=probability[:head], minlength=row_shards
    )
    return shares + (probability[head:] * count[head:]).sum() / row_shards
