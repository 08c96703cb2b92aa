"""Metrics within groups, against loops in plain Python and scikit-learn."""

import itertools
import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from embark_jax.metrics.ranking import Ranks, at_k, rank


def made_up(seed: int, ties: bool):
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 40, 500)
    labels = (rng.random(500) < 0.3).astype(int)
    logits = rng.normal(size=500)
    return groups, labels, np.round(logits) if ties else logits


@pytest.mark.parametrize(("k", "ties"), [(1, False), (5, True), (1000, False)])
def test_ranking_equals_a_loop(k, ties):
    groups, labels, logits = made_up(0, ties)
    aucs, sizes, recalls, gains = [], [], [], []
    for group in np.unique(groups):
        mine = np.flatnonzero(groups == group)
        truth, scores = labels[mine], logits[mine]
        if 0 < truth.sum() < len(mine):
            aucs.append(roc_auc_score(truth, scores))
            sizes.append(len(mine))
        if truth.any():
            for found, value in zip(
                (gains, recalls), in_order(truth, scores, k), strict=True
            ):
                found.append(value)
    found = rank(groups, labels, logits, k)
    assert found["gauc"] == pytest.approx(np.average(aucs, weights=sizes))
    if ties:
        return  # their order is left open, below
    assert found[f"recall@{k}"] == pytest.approx(np.mean(recalls))
    assert found[f"ndcg@{k}"] == pytest.approx(np.mean(gains))


def in_order(truth, scores, k: int) -> tuple[float, float]:
    """NDCG and recall of a group, equal scores in the order given."""
    order = sorted(range(len(truth)), key=lambda i: -scores[i])
    best = [truth[i] for i in order][:k]
    ideal = sorted(truth, reverse=True)[:k]
    gain, most = (
        sum(t / math.log2(place + 2) for place, t in enumerate(each))
        for each in (best, ideal)
    )
    return gain / most, sum(best) / sum(truth)


@pytest.mark.parametrize("k", [1, 2, 3, 7])
def test_ties_count_by_the_mean_over_all_orders(k):
    """Oracle: each order of the samples of a group, one by one."""
    rng = np.random.default_rng(k)
    groups = [rng.integers(0, 2, size) for size in (1, 3, 6, 6)]
    groups = [np.append(truth, 1) for truth in groups]
    scores = [rng.integers(0, 2, len(truth)) for truth in groups]
    expected = []
    for truth, score in zip(groups, scores, strict=True):
        orders = map(list, itertools.permutations(range(len(truth))))
        values = [in_order(truth[order], score[order], k) for order in orders]
        expected.append(np.mean(values, axis=0))
    names = np.repeat(np.arange(4), [len(truth) for truth in groups])
    found = rank(names, np.concatenate(groups), np.concatenate(scores), k)
    assert [*found.values()][1:] == pytest.approx(np.mean(expected, axis=0))


def test_metrics_do_not_depend_on_the_order_of_the_file():
    groups, labels, logits = made_up(1, ties=True)
    order = np.random.default_rng(2).permutation(len(groups))
    expected = rank(groups, labels, logits, 5)
    found = rank(groups[order], labels[order], logits[order], 5)
    assert found == pytest.approx(expected)
    all_alike = rank(np.zeros(1000), np.arange(1000) < 10, np.zeros(1000), 10)
    assert all_alike == pytest.approx(
        {"gauc": 0.5, "ndcg@10": 10 / 1000, "recall@10": 10 / 1000}
    )


def test_what_has_no_value():
    found = rank([1, 1, 2], [0, 0, 0], [0.3, 0.1, 0.2], 3)
    assert set(found.values()) == {None}
    found = rank([1, 1, 2], [1, 1, 1], [0.3, 0.1, 0.2], 3)
    assert (found["gauc"], found["recall@3"]) == (None, 1)
    for labels in ([], [0.3, 1]):  # no samples; soft labels
        found = rank(labels, labels, labels, 3)
        assert found == {"gauc": None, "ndcg@3": None, "recall@3": None}
    no_ranks = Ranks(np.empty(0, int), np.empty(0, int))
    assert at_k(no_ranks, [5]) == {"hr@5": None, "ndcg@5": None}
    for groups, labels, logits in (([1], [2], [0.0]), ([1, 2], [1], [1])):
        with pytest.raises(ValueError, match=r"samples|labels must be from 0 to 1"):
            rank(groups, labels, logits, 1)


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


def test_infinite_logits_that_are_equal_count_half():
    labels, logits = [1, 0, 1, 0], np.array([np.inf, np.inf, np.inf, -np.inf])
    found = rank([7, 7, 7, 7], labels, logits, 4)
    assert found["gauc"] == roc_auc_score(labels, [1, 1, 1, 0]) == 0.75
