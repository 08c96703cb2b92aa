"""Histograms: skew as a sample of the data shows it.

Any rows of real data may be hot, and most rows of a large table are not in the sample
at all. So a histogram keeps three things: how many rows were seen how often; which rows
were the most frequent; and, from the rows seen once and twice, an estimate of the rows
not seen.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from embark_jax.statistics.skew import Zipf, intervals, row_probabilities

BIN_RATIO = 1.05
"""Ratio of a bin: counts of its rows are within 5 % of each other."""
MOST_HOTTEST = 1024
"""Rows that are kept with their ids. The others spread over row shards by chance: with
exponent 1.1, to 3 % of a share on 128 shards."""
MOST_SEEN = 0.9
"""Largest share of a table's rows at which the number seen tells the skew."""
MOST_IN_ORDER = 0.75
"""Share of the most frequent rows that must have low numbers for rows to count as
numbered by frequency."""
SPECIAL_ROWS = 2
"""First rows of a vocabulary, which missing and rare values have: often nobody has."""
MAX_EXPONENT, EXPONENT_TOLERANCE = 4.0, 1e-3


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Accesses of the rows of one table in a sample of the data.

    Attributes:
      bins: ``(rows, accesses)`` of rows that were seen about as often, from the most
        to the least frequent: a rank-frequency curve. Rows seen once, and those seen
        twice, have a bin of their own.
      hottest: ``(id, accesses)`` of the most frequent rows.
    """

    bins: tuple[tuple[PositiveInt, PositiveInt], ...]
    hottest: tuple[tuple[NonNegativeInt, PositiveInt], ...]

    @classmethod
    def from_counts(cls, ids: np.ndarray, counts: np.ndarray) -> Histogram:
        """Makes a histogram from ``[rows seen]`` unique ids and how often each was
        seen."""
        order = np.lexsort((ids, -counts))
        ids, counts = ids[order], counts[order]
        # Bins 1 and 2 hold exact counts, as do all bins up to where two counts are
        # within 5 %.
        of_bin = np.floor(np.log(counts) / np.log(BIN_RATIO)).astype(np.int64)
        starts = np.flatnonzero(np.diff(of_bin, prepend=-1))
        rows = np.diff(np.append(starts, len(counts)))
        accesses = np.add.reduceat(counts, starts) if len(counts) else counts
        hottest = slice(MOST_HOTTEST)
        return cls(
            tuple(zip(rows.tolist(), accesses.tolist(), strict=True)),
            tuple(zip(ids[hottest].tolist(), counts[hottest].tolist(), strict=True)),
        )

    @functools.cached_property
    def rows_seen(self) -> int:
        return sum(rows for rows, _ in self.bins)

    @functools.cached_property
    def accesses(self) -> int:
        return sum(accesses for _, accesses in self.bins)

    def expected_unique(self, rows: int, draws: float) -> float:
        """Returns the unique rows to expect among ``draws`` ids of a table of ``rows``.

        Up to its size, the sample is thinned at random; beyond, the estimate adds
        Chao's estimate of the rows not seen (https://doi.org/10.1890/13-0133.1).
        """
        if draws > self.accesses:
            return self._extrapolated(rows, draws - self.accesses)
        seen, accesses = np.array(self.bins, np.float64).reshape(-1, 2).T
        kept = draws / max(self.accesses, 1)
        with np.errstate(divide="ignore"):  # if all are kept, log1p(-1) is -inf
            return float(-(seen * np.expm1(accesses / seen * np.log1p(-kept))).sum())

    def row_shard_shares(self, rows: int, row_shards: int) -> np.ndarray:
        """Returns ``[row_shards]`` share of ids that fall on each; rows go round robin.

        The most frequent rows count in their own row shards, the others evenly.
        """
        held = (rows - np.arange(row_shards) + row_shards - 1) // row_shards
        if not self.accesses:
            return held / rows
        ids, accesses = np.array(self.hottest, np.int64).reshape(-1, 2).T
        shares = np.bincount(ids % row_shards, accesses, minlength=row_shards)
        shares = shares + (self.accesses - accesses.sum()) * held / rows
        return shares / shares.sum()

    @property
    def in_order(self) -> bool:
        """Says whether rows are numbered by frequency, as those of vocabularies are:
        then most of the k most frequent rows are among the first 2 k. In any other
        order at most a quarter of them is; k is an eighth of the rows seen."""
        hottest = self.hottest[: max(1, self.rows_seen // 8)]
        ids = np.array(hottest, np.int64).reshape(-1, 2)[:, 0]
        low = ids < SPECIAL_ROWS + 2 * len(ids)
        return bool(low.mean() > MOST_IN_ORDER) if len(ids) else False

    def share(self, rows: int, begin: int, end: int) -> float:
        """Returns the same as ``Skew.share``."""
        held = self.within(rows, begin, end)
        return held.accesses / max(self.accesses, 1)

    def within(self, rows: int, begin: int, end: int) -> Histogram:
        """Returns the histogram of the ids that fall on rows ``[begin, end)``, counted
        from ``begin``.

        Where rows are numbered by frequency, the method cuts the curve of frequencies;
        elsewhere the most frequent rows count under their own ids, the others evenly.
        Where rows were seen a few times only, chance decides which were seen more, so
        that the share of the first rows comes out a little too large.
        """
        hottest = tuple(
            (row - begin, count) for row, count in self.hottest if begin <= row < end
        )
        if self.in_order:
            return Histogram(_cut(self.bins, begin, end), hottest)
        others = _cut(self.bins, len(self.hottest), rows)
        others = _thin(others, (end - begin) / rows)
        return Histogram(tuple((1, count) for _, count in hottest) + others, hottest)

    def share_of_hottest(self, rows: int) -> float:
        """Returns the share of accesses that the ``rows`` most frequent rows take."""
        seen, accesses = np.array(self.bins, np.float64).reshape(-1, 2).T
        ranks = np.append(0.0, np.cumsum(seen))
        share = np.interp(rows, ranks, np.append(0.0, np.cumsum(accesses)))
        return float(share) / max(self.accesses, 1)

    def zipf_exponent(self, rows: int) -> float:
        """Returns the exponent of the power law that fits a table of ``rows``.

        This power law shows as many unique rows in as many draws. Where nearly all rows
        were seen, it is the likeliest one, in which chance makes uniform draws look
        like an exponent of up to 0.25.
        """
        if not self.accesses:
            return 0.0
        if self.rows_seen > MOST_SEEN * rows:
            return _likeliest_exponent(np.array(self.bins, np.float64))
        return _falls_to_zero(
            lambda exponent: (
                Zipf(exponent).expected_unique(rows, self.accesses) - self.rows_seen
            )
        )

    def probabilities(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the same as ``Skew.probabilities``; the rows not seen are one
        class."""
        seen, accesses = np.array(self.bins, np.float64).reshape(-1, 2).T
        unseen, rate = self._unseen(rows)
        shares = accesses / seen / max(self.accesses, 1) * (1 - unseen * rate)
        return np.append(shares, rate), np.append(seen, unseen)

    def _unseen(self, rows: int) -> tuple[float, float]:
        """Returns the estimated number of rows that were not seen, and the probability
        of one of them."""
        once, twice = (
            sum(n for n, accesses in self.bins if accesses == times * n)
            for times in (1, 2)
        )
        unseen = once**2 / (2 * twice) if twice else once * (once - 1) / 2
        unseen = min(unseen, rows - self.rows_seen)
        if unseen <= 0:
            return 0.0, 0.0
        return unseen, once / (self.accesses * unseen + once)

    def _extrapolated(self, rows: int, more_draws: float) -> float:
        unseen, rate = self._unseen(rows)
        return self.rows_seen - unseen * float(np.expm1(more_draws * np.log1p(-rate)))


def _cut(
    bins: tuple[tuple[int, int], ...], begin: int, end: int
) -> tuple[tuple[int, int], ...]:
    """Cuts the rows from ``begin`` to ``end`` out of bins, in their order."""
    cut_bins, first = [], 0
    for rows, accesses in bins:
        kept = min(end, first + rows) - max(begin, first)
        if kept > 0:
            cut_bins.append((kept, round(accesses * kept / rows)))
        first += rows
    return tuple(cut_bins)


def _thin(
    bins: tuple[tuple[int, int], ...], share: float
) -> tuple[tuple[int, int], ...]:
    """Takes a share of the rows of bins, at equal distances."""
    thinned_bins, first = [], 0
    for rows, accesses in bins:
        kept = round((first + rows) * share) - round(first * share)
        if kept:
            thinned_bins.append((kept, round(accesses * kept / rows)))
        first += rows
    return tuple(thinned_bins)


def _likeliest_exponent(bins: np.ndarray) -> float:
    """Returns the likeliest exponent of a power law over the rows of these bins,
    ``[bins, 2]``: the one with an equal mean logarithm of ranks."""
    rows, accesses = bins.T
    last = np.cumsum(rows).astype(np.int64)
    log_ranks = np.cumsum(np.log(np.arange(1, last[-1] + 1)))
    mean_log_ranks = np.diff(log_ranks[last - 1], prepend=0.0) / rows
    mean_log_rank = (accesses @ mean_log_ranks) / accesses.sum()

    def surplus(exponent: float) -> float:
        probability, count = row_probabilities(int(last[-1]), Zipf(exponent))
        ranks, _ = intervals(int(last[-1]))
        return float((probability * count) @ np.log(ranks)) - mean_log_rank

    return _falls_to_zero(surplus)


def _falls_to_zero(value: Callable[[float], float]) -> float:
    """Returns the exponent at which a falling function of it crosses zero."""
    low, high = 0.0, MAX_EXPONENT
    while high - low > EXPONENT_TOLERANCE:
        middle = (low + high) / 2
        low, high = (middle, high) if value(middle) > 0 else (low, middle)
    return low
