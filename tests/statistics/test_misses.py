"""Predicted misses beside caches that are replayed row by row."""

import numpy as np
import pytest

from embark_jax.statistics.histogram import Histogram
from embark_jax.statistics.misses import missed_rows
from embark_jax.statistics.skew import Zipf

ROWS, IDS = 3000, 100


def replayed(exponent, slots, evict, batches):
    """Mean rows that a batch misses, after half of the batches."""
    rng = np.random.default_rng(0)
    weights = np.arange(1.0, ROWS + 1) ** -exponent
    ids = rng.choice(ROWS, (batches, IDS), p=weights / weights.sum())
    counts, used_at = {}, {}
    misses = []
    for turn, batch in enumerate(ids):
        asked = set(batch.tolist())
        misses.append(len(asked - counts.keys()))
        for row in asked:
            counts[row] = counts.get(row, 0) + 1
            used_at[row] = turn
        score = counts if evict == "lfu" else used_at
        leaving = sorted(counts.keys() - asked, key=score.__getitem__)
        for row in leaving[: max(0, len(counts) - slots)]:
            del counts[row]
    return np.mean(misses[batches // 2 :])


@pytest.mark.parametrize(
    ("exponent", "slots", "evict"),
    [(0.0, 900, "lru"), (0.0, 900, "lfu"), (0.9, 500, "lru"), (1.2, 300, "lru")],
)
def test_misses_are_those_of_a_replay(exponent, slots, evict):
    skew = Zipf(exponent)
    unique = skew.expected_unique(ROWS, IDS)
    measured = replayed(exponent, slots, evict, 1000) / unique
    predicted = missed_rows(skew, ROWS, slots, IDS, evict) / unique
    assert predicted == pytest.approx(measured, abs=0.01)


@pytest.mark.parametrize(("exponent", "slots"), [(0.9, 500), (1.2, 300)])
def test_rows_counted_most_often_miss_less_than_the_last_and_more_than_the_best(
    exponent, slots
):
    """The best slots hold the most frequent rows, from the beginning."""
    skew = Zipf(exponent)
    colder_ids = IDS * skew.share(ROWS, slots, ROWS)
    best = skew.within(ROWS, slots, ROWS).expected_unique(ROWS - slots, colder_ids)
    lfu, lru = (missed_rows(skew, ROWS, slots, IDS, evict) for evict in ("lfu", "lru"))
    assert best < lfu < lru
    measured = replayed(exponent, slots, "lfu", 1000)
    assert best < measured < replayed(exponent, slots, "lru", 1000)


def test_a_sample_predicts_as_the_law_that_drew_it_does():
    weights = np.arange(1.0, ROWS + 1) ** -1.1
    counts = np.random.default_rng(0).multinomial(200_000, weights / weights.sum())
    ids = np.flatnonzero(counts)
    sample = Histogram.from_counts(ids, counts[ids])
    for evict in ("lru", "lfu"):
        expected = missed_rows(Zipf(1.1), ROWS, 600, IDS, evict)
        found = missed_rows(sample, ROWS, 600, IDS, evict)
        assert found == pytest.approx(expected, rel=0.03)


def test_nothing_is_missed_where_all_rows_have_slots():
    assert missed_rows(Zipf(1.1), 50, 50, 100) == 0
    assert missed_rows(Zipf(1.1), 50, 49, 100) > 0
