"""AUC of training, held to the exact one."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from sklearn.metrics import roc_auc_score

from embark_jax.metrics.streaming_auc import MAX_ERROR, TrainingAuc

BATCH, BATCHES = 2_000, 12


def told(logits: np.ndarray, labels: np.ndarray, auc: TrainingAuc | None = None):
    """Of ``BATCHES`` batches on eight devices."""
    auc = auc or TrainingAuc()
    axes = (AxisType.Auto,) * 2
    mesh = jax.make_mesh((2, 4), ("node", "gpu"), axis_types=axes)
    by_sample = NamedSharding(mesh, PartitionSpec(("node", "gpu")))
    for part in zip(*(np.split(x, BATCHES) for x in (logits, labels)), strict=True):
        auc.add(*(jax.device_put(x.astype(np.float32), by_sample) for x in part))
    (found,) = auc.take()
    return found


def draw(center: float, spread: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = center + spread * rng.standard_normal(BATCH * BATCHES)
    labels = rng.random(len(logits)) < 1 / (1 + np.exp(-logits))
    return logits.astype(np.float32), labels


@pytest.mark.parametrize("center", [-3.5, 0.0, 40.0])
@pytest.mark.parametrize("spread", [1e-5, 0.1, 1.0, 20.0])
def test_it_is_right_or_is_not_told(center, spread):
    logits, labels = draw(center, spread)
    if labels.all():
        labels[:100] = False
    found = told(logits, labels)
    if abs(center) <= 4 * spread:
        assert found is not None
    if center and spread == 1e-5:
        assert found is None
    if found is not None:
        assert found == pytest.approx(roc_auc_score(labels, logits), abs=MAX_ERROR)


def test_the_bound_holds_where_ties_are_worst():
    """All pairs of a bin in the wrong order: its width is what is promised."""
    logits = np.repeat([1.0, np.nextafter(np.float32(1), 2)], BATCH * BATCHES // 2)
    labels = np.arange(BATCH * BATCHES) % 2 == 0
    assert told(logits, labels) is None


def test_it_begins_anew_when_it_was_told():
    auc, logits, labels = TrainingAuc(), *draw(-1, 2, seed=1)
    right = told(logits, labels, auc)
    assert right is not None
    assert told(-logits, labels, auc) == pytest.approx(1 - right, abs=2e-6)
    assert auc.take() == []


@pytest.mark.parametrize("labels", [np.zeros, np.ones, lambda n: np.full(n, 0.5)])
def test_labels_that_give_none(labels):
    logits, _ = draw(0, 1)
    assert told(logits, labels(len(logits))) is None


def test_each_task_has_its_own():
    (logits, labels), (others, flags) = draw(-1, 2), draw(1, 0.5, seed=1)
    auc = TrainingAuc()
    mesh = jax.make_mesh((2, 4), ("node", "gpu"), axis_types=(AxisType.Auto,) * 2)
    by_sample = NamedSharding(mesh, PartitionSpec(("node", "gpu")))
    both = np.stack([logits, others], axis=1), np.stack([labels, flags], axis=1)
    for part in zip(*(np.split(x, BATCHES) for x in both), strict=True):
        auc.add(*(jax.device_put(x.astype(np.float32), by_sample) for x in part))
    expected = roc_auc_score(labels, logits), roc_auc_score(flags, others)
    assert auc.take() == pytest.approx(expected, abs=MAX_ERROR)
