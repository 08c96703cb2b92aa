"""Scores that are equal but for the last bits, against the rule by hand."""

import numpy as np
import pytest

from embark_jax.metrics import ties
from embark_jax.metrics.pointwise import auc
from embark_jax.metrics.ranking import rank


def last_bits(score: float, samples: int) -> np.ndarray:
    """A score and its neighbours in float32, the last samples one unit higher."""
    scores = np.full(samples, score, np.float32)
    scores[samples // 2 :] = np.nextafter(np.float32(score), np.float32(np.inf))
    return scores


@pytest.mark.parametrize("score", [0.0213, -3.7, 1 - 2**-18, 2.0**-100, 3e38])
def test_the_last_bit_of_equal_samples_orders_nothing(score):
    """The positive is the last of 100 equal samples: each place is as likely."""
    labels, scores = np.arange(100) == 99, last_bits(score, 100)
    expected = np.mean([1 / np.log2(place + 2) * (place < 10) for place in range(100)])
    assert auc(labels, scores) == 0.5
    found = rank(np.zeros(100), labels, scores, 10)
    assert found == pytest.approx({"gauc": 0.5, "ndcg@10": expected, "recall@10": 0.1})


def test_numbers_are_those_of_a_loop_over_the_rule():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=300) * 10.0 ** rng.integers(-6, 6, 300)
    scores = np.concatenate([scores, scores * (1 + ties.NEAR * rng.normal(size=300))])
    dense = 1 + ties.NEAR * 0.4 * np.arange(300)  # one run, 30 times as wide as allowed
    scores = np.concatenate([scores, dense, [0, 0, 1e-300]])
    numbers, before, first, pieces = {}, None, None, 0
    for score in sorted(scores):
        if before is None or score - before > ties.NEAR * max(abs(score), abs(before)):
            first, pieces = score, 0
            numbers[score] = len({*numbers.values()}) + 1
        elif score != before and (score - first) // (ties.WIDEST * abs(first)) > pieces:
            pieces = (score - first) // (ties.WIDEST * abs(first))
            numbers[score] = len({*numbers.values()}) + 1
        else:
            numbers[score] = numbers[before]
        before = score
    scores = rng.permutation(scores)
    expected = [numbers[score] for score in scores]
    np.testing.assert_array_equal(ties.tie_numbers(scores), expected)
    assert len({numbers[score] for score in dense}) >= 30


def test_infinities_are_equal_to_themselves_alone():
    scores = np.array([np.inf, 3e38, -np.inf, np.inf, 0.0, -0.0])
    assert ties.tie_numbers(scores).tolist() == [4, 3, 1, 4, 2, 2]
