"""Losses, against their formulas; and one of a user's own."""

import jax.numpy as jnp
import numpy as np
import pytest

from embark_jax.config import reading
from embark_jax.run import experiment
from embark_jax.train.losses import LOG_LOSS, BinaryCrossEntropy
from tests import runs
from tests.builders import SMALL_BATCH, SMALL_DATA, Sum, small_trainer


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_log_loss_equals_its_formula(smoothing, l2):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=8), rng.integers(0, 2, 8)
    pooled, sequence = rng.normal(size=(8, 3)), rng.normal(size=(8, 2, 5))
    p = 1 / (1 + np.exp(-logits))
    target = (1 - smoothing) * labels + smoothing / 2
    expected = -target * np.log(p) - (1 - target) * np.log(1 - p)
    expected += l2 / 2 * ((pooled**2).sum(axis=1) + (sequence**2).sum(axis=(1, 2)))
    found = BinaryCrossEntropy(smoothing, l2)(
        jnp.float32(logits),
        jnp.float32(labels),
        {"pooled": jnp.float32(pooled), "sequence": jnp.float32(sequence)},
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_losses_of_tasks_are_summed_by_weight():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(8, 3)), rng.integers(0, 2, (8, 3))
    p = 1 / (1 + np.exp(-logits))
    each = -labels * np.log(p) - (1 - labels) * np.log(1 - p)
    arrays = jnp.float32(logits), jnp.float32(labels), {}
    np.testing.assert_allclose(LOG_LOSS(*arrays), each.sum(axis=1), rtol=1e-5)
    weighted = BinaryCrossEntropy(task_weights=(1, 0.5, 0))
    np.testing.assert_allclose(
        weighted(*arrays), each @ np.array([1, 0.5, 0]), rtol=1e-5
    )


def squared(logits, labels, embeddings):
    """A loss of one's own."""
    return jnp.square(logits - labels)


def test_a_loss_of_one_s_own_is_what_is_made_small():
    trainer = small_trainer(Sum(), 4, loss=squared)
    batch = SMALL_DATA.train_batch(0, SMALL_BATCH)
    ((_, before),) = trainer.predict([batch])
    residual = np.asarray(before, np.float64) - batch.labels
    (result,) = trainer.iterate_batches([batch])
    assert result is not None
    np.testing.assert_allclose(result.loss, np.mean(residual**2), rtol=1e-5)
    # One step of SGD on both rows of a sample, of all samples that share them.
    gradient = 2 * residual / SMALL_BATCH
    ((_, after),) = trainer.predict([batch])
    change = np.zeros(SMALL_BATCH)
    for name in "ab":
        same = batch.ids[name] == batch.ids[name].T
        change -= 0.5 * 4 * same @ gradient
    np.testing.assert_allclose(after - before, change, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_options_of_a_config_reach_the_step(tmp_path):
    path = runs.write_config(tmp_path)
    losses = {}
    for options in ((), ("train.label_smoothing=0.5",), ("train.embedding_l2=9",)):
        setup = experiment.build(reading.load(path, options))
        last = setup.trainer().fit(setup.dataset, 1)
        assert last is not None
        losses[options] = last.loss
    assert len(set(losses.values())) == 3
