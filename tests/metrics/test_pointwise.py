"""Metrics against hand-worked values and a brute-force AUC."""

import dataclasses
import math

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st

from embark_jax.metrics.pointwise import Metrics, evaluate


def brute_force_auc(labels, logits):
    """Share of (positive, negative) pairs in the right order, ties half."""
    positive, negative = logits[labels == 1], logits[labels == 0]
    wins = positive[:, None] > negative[None, :]
    ties = positive[:, None] == negative[None, :]
    return float(np.mean(wins + 0.5 * ties))


def test_metrics_are_those_by_hand():
    # Odds 1, 3, 1/3 and 3: predictions 1/2, 3/4, 1/4, 3/4 for labels 0, 1, 0, 0.
    metrics = evaluate(np.array([0, 1, 0, 0]), np.log([1, 3, 1 / 3, 3]))
    log_loss = (math.log(2) + 2 * math.log(4 / 3) + math.log(4)) / 4
    entropy = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)
    expected = {
        "samples": 4,
        "log_loss": log_loss,
        "normalized_entropy": log_loss / entropy,
        "calibration": (2.25 / 4) / (1 / 4),
        "auc": (1 + 1 + 0.5) / 3,
        "accuracy": 3 / 4,
    }
    found = dataclasses.asdict(metrics)
    assert found.pop("tasks") == ()
    assert found == pytest.approx(expected, rel=1e-12)


def test_several_tasks_have_their_own_metrics_and_their_means():
    labels = np.array([[0, 1], [1, 1], [0, 0], [0, 1]])
    logits = np.array([[0.1, 1.0], [1.1, -0.5], [-2.0, 0.3], [0.9, 2.0]])
    found = evaluate(labels, logits)
    each = [evaluate(labels[:, i], logits[:, i]) for i in (0, 1)]
    assert list(found.tasks) == each
    assert found.samples == 4
    assert found.auc == pytest.approx(np.mean([task.auc for task in each]))
    assert found.log_loss == pytest.approx(np.mean([task.log_loss for task in each]))
    one_class = evaluate(np.array([[0, 1], [1, 1]]), logits[:2])
    assert one_class.auc is None
    assert one_class.tasks[0].auc == 1


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(-4, 4)), min_size=2, max_size=60
    ).filter(lambda samples: len({label for label, _ in samples}) == 2)
)
def test_auc_equals_brute_force_with_many_ties(samples):
    labels, logits = (np.array(column, np.float32) for column in np.transpose(samples))
    expected = brute_force_auc(labels, logits)
    assert evaluate(labels, logits).auc == pytest.approx(expected, rel=1e-12)


def test_weights_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    logits = rng.integers(-3, 4, 200).astype(np.float64)  # with many ties
    labels, weights = rng.integers(0, 2, 200), rng.exponential(size=200)
    weights[:20] = 0
    p = 1 / (1 + np.exp(-logits))
    found = evaluate(labels, logits, weights)
    expected = {
        "auc": sklearn.metrics.roc_auc_score(labels, logits, sample_weight=weights),
        "log_loss": sklearn.metrics.log_loss(labels, p, sample_weight=weights),
        "accuracy": sklearn.metrics.accuracy_score(
            labels, logits > 0, sample_weight=weights
        ),
        "calibration": (p @ weights) / (labels @ weights),
    }
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-9), name


@pytest.mark.parametrize("weights", [[1], [1, -1], [1, math.nan]])
def test_weights_that_make_no_sense_are_refused(weights):
    with pytest.raises(ValueError, match="must be one for each of the 2 samples"):
        evaluate(np.array([0, 1]), np.zeros(2), np.array(weights))


def test_what_no_sample_has_is_undefined_and_all_else_is_there():
    """A task without labels, or whose samples have no weight, leaves the other's."""
    labels = np.array([[0, np.nan], [1, np.nan], [1, np.nan]])
    logits = np.array([[0.1, 1.0], [1.1, -0.5], [-2.0, 0.3]])
    found = evaluate(labels, logits)
    assert found.tasks[0] == evaluate(labels[:, 0], logits[:, 0])
    assert found.tasks[1] == Metrics(samples=0)
    assert found == Metrics(samples=3, tasks=found.tasks)
    assert evaluate(labels[:, 0], logits[:, 0], np.zeros(3)) == Metrics(samples=3)


def test_huge_logits_stay_finite():
    metrics = evaluate(np.array([1, 0, 0]), np.array([1e4, -1e4, 1e4]))
    assert metrics.log_loss == pytest.approx(1e4 / 3, rel=1e-12)
    assert metrics.calibration == pytest.approx(2, rel=1e-12)


def test_float32_logits_that_round_to_probability_one_still_rank():
    # sigmoid(40) and sigmoid(50) are both 1 in float64, but their logits differ.
    labels, logits = np.array([0, 1]), np.array([40, 50], np.float32)
    assert evaluate(labels, logits).auc == 1


@pytest.mark.parametrize(("label", "calibration"), [(0, None), (1, 0.5)])
def test_one_class_has_neither_auc_nor_normalized_entropy(label, calibration):
    metrics = evaluate(np.full(3, label), np.zeros(3))
    assert metrics.auc is None
    assert metrics.normalized_entropy is None
    assert metrics.calibration == calibration
    assert metrics.log_loss == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("labels", "logits", "message"),
    [
        (
            [],
            [],
            r"labels have shape \(0,\) and logits \(0,\), must both be \[samples\]",
        ),
        ([1], [1, 2], r"labels have shape \(1,\) and logits \(2,\)"),
        ([[[1]]], [[[1]]], r"labels have shape \(1, 1, 1\)"),
        (
            [0, -0.5, 2],
            [0, 0, 0],
            r"label of sample 1 is -0.5, must be from 0 to 1",
        ),
        ([[0, 1], [1, 7]], [[0, 0], [0, 0]], r"label of sample 1 is 7.0, must be"),
        ([0, 1], [0, math.nan], r"logit of sample 1 is nan, must be finite"),
    ],
)
def test_labels_and_logits_that_make_no_sense_are_refused(labels, logits, message):
    with pytest.raises(ValueError, match=message):
        evaluate(np.array(labels), np.array(logits))


def test_soft_labels_have_a_loss_and_a_calibration_but_no_ranking():
    labels, logits = np.array([0.3, 0.9, 0, 1]), np.array([-1.0, 2.0, 0.5, 0.0])
    p = 1 / (1 + np.exp(-logits))
    found = evaluate(labels, logits)
    expected = -(labels * np.log(p) + (1 - labels) * np.log(1 - p)).mean()
    assert found.log_loss == pytest.approx(expected)
    assert found.calibration == pytest.approx(p.mean() / labels.mean())
    assert found.auc is None
    assert found.accuracy is None
