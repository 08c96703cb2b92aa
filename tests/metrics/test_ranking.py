"""Metrics within groups, against loops in plain Python and scikit-learn."""

import math

import numpy as np
import pytest
from sklearn.metrics import ndcg_score, roc_auc_score

from embark_jax.metrics.ranking import calibration, rank


def made_up(seed: int, ties: bool):
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 40, 500)
    labels = (rng.random(500) < 0.3).astype(int)
    logits = rng.normal(size=500)
    return groups, labels, np.round(logits) if ties else logits


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("k", [1, 5, 1000])
def test_ranking_equals_a_loop(ties, k):
    groups, labels, logits = made_up(0, ties)
    aucs, sizes, recalls, ranks, gains = [], [], [], [], []
    for group in np.unique(groups):
        mine = np.flatnonzero(groups == group)
        truth, scores = labels[mine], logits[mine]
        if 0 < truth.sum() < len(mine):
            aucs.append(roc_auc_score(truth, scores))
            sizes.append(len(mine))
        if not truth.any():
            continue
        order = sorted(range(len(mine)), key=lambda i: (-scores[i], i))
        best = [truth[i] for i in order][:k]
        recalls.append(sum(best) / truth.sum())
        ranks.append(1 / (best.index(1) + 1) if 1 in best else 0.0)
        ideal = sorted(truth, reverse=True)[:k]
        gain, most = (
            sum(t / math.log2(place + 2) for place, t in enumerate(each))
            for each in (best, ideal)
        )
        gains.append(gain / most)
    found = rank(groups, labels, logits, k)
    assert found.groups == len(np.unique(groups))
    assert found.gauc == pytest.approx(np.average(aucs, weights=sizes))
    assert found.recall == pytest.approx(np.mean(recalls))
    assert found.mrr == pytest.approx(np.mean(ranks))
    assert found.ndcg == pytest.approx(np.mean(gains))


def test_ndcg_is_scikit_learns():
    rng = np.random.default_rng(0)
    truth, scores = rng.integers(0, 2, (30, 20)), rng.normal(size=(30, 20))
    truth[:, 0] = 1
    groups = np.repeat(np.arange(30), 20)
    found = rank(groups, truth.ravel(), scores.ravel(), 7)
    assert found.ndcg == pytest.approx(ndcg_score(truth, scores, k=7))


def test_what_has_no_value():
    found = rank([1, 1, 2], [0, 0, 0], [0.3, 0.1, 0.2], 3)
    assert (found.gauc, found.ndcg, found.recall, found.mrr) == (None,) * 4
    found = rank([1, 1, 2], [1, 1, 1], [0.3, 0.1, 0.2], 3)
    assert (found.gauc, found.recall, found.mrr) == (None, 1, 1)
    for groups, labels, logits in (([], [], []), ([1], [2], [0.0]), ([1, 2], [1], [1])):
        with pytest.raises(ValueError, match=r"samples|labels must be 0 or 1"):
            rank(groups, labels, logits, 1)


def test_calibration_of_probabilities_that_are_right():
    rng = np.random.default_rng(0)
    probabilities = rng.random(100_000)
    labels = (rng.random(100_000) < probabilities).astype(int)
    logits = np.log(probabilities / (1 - probabilities))
    found = np.array(calibration(labels, logits, 5))
    np.testing.assert_allclose(found[:, 0], [0.1, 0.3, 0.5, 0.7, 0.9], atol=0.01)
    np.testing.assert_allclose(found[:, 1], found[:, 0], atol=0.02)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_ids_beyond_floats_are_groups_of_their_own(dtype):
    """Four neighbours above 2^53 have one float; oracle: the same samples with the
    groups 0 to 3, which a float tells apart."""
    rng = np.random.default_rng(1)
    small = np.repeat(np.arange(4), 25)[rng.permutation(100)]
    labels, logits = (rng.random(100) < 0.4).astype(int), rng.normal(size=100)
    large = small.astype(dtype) + dtype(2**62)
    assert len(set(large.astype(float))) == 1
    assert rank(large, labels, logits, 5) == rank(small, labels, logits, 5)
    assert rank(large, labels, logits, 5).groups == 4


def test_infinite_logits_that_are_equal_count_half():
    labels, logits = [1, 0, 1, 0], np.array([np.inf, np.inf, np.inf, -np.inf])
    found = rank([7, 7, 7, 7], labels, logits, 4)
    assert found.gauc == roc_auc_score(labels, [1, 1, 1, 0]) == 0.75
