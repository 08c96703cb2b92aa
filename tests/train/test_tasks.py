"""Several labels a sample, and samples with weights: one loss, on every mesh."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from sklearn.metrics import roc_auc_score

from embark_jax import models
from embark_jax._base.errors import UserError
from embark_jax.config.models import section_of
from embark_jax.data import DataError
from embark_jax.metrics.pointwise import Metrics
from embark_jax.train.losses import BinaryCrossEntropy
from tests.builders import SMALL_BATCH, SMALL_DATA, Sum, small_trainer

WEIGHTS = 1.0, 0.25


def batch_of(step):
    batch = SMALL_DATA.train_batch(step, SMALL_BATCH)
    second = (batch.ids["a"][:, 0] % 2).astype(np.float32)
    labels = np.stack([batch.labels, second], axis=1)
    return dataclasses.replace(batch, labels=labels)


def tasks_trainer(model, gpus=1):
    loss = BinaryCrossEntropy(task_weights=WEIGHTS)
    return small_trainer(model, gpus, loss=loss)


def mmoe():
    config = section_of("mmoe")(
        tasks=("click", "like"), experts=2, expert=(4,), tower=(3,)
    )
    return models.build(config, {"a": (4,), "b": (4,)}, 1, nnx.Rngs(0))


def test_a_missing_label_has_no_loss_and_counts_in_no_metric():
    """Loss and gradient are NumPy's, metrics those of the samples that have it."""
    batch = batch_of(0)
    labels = batch.labels.copy()
    labels[::3, 0], labels[1::4, 1], labels[5] = np.nan, np.nan, np.nan
    batch = dataclasses.replace(batch, labels=labels)
    trainer = tasks_trainer(mmoe(), gpus=4)
    ((_, scored),) = trainer.predict([batch])
    logits, known = np.asarray(scored, np.float64), ~np.isnan(labels)
    p, y = 1 / (1 + np.exp(-logits)), np.nan_to_num(labels)
    each = -(y * np.log(p) + (1 - y) * np.log(1 - p)) * known * WEIGHTS

    def loss(logits):
        return BinaryCrossEntropy(task_weights=WEIGHTS)(
            logits, jnp.asarray(labels), {}
        ).sum()

    gradient = jax.grad(loss)(jnp.asarray(logits, jnp.float32))
    expected = (p - y) * known * WEIGHTS
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)
    metrics = trainer.evaluate([batch])
    assert metrics.samples == SMALL_BATCH
    for task, found in enumerate(metrics.tasks):
        rows = known[:, task]
        assert found.samples == rows.sum() < SMALL_BATCH
        assert found.auc == roc_auc_score(labels[rows, task], logits[rows, task])
        wanted = each[rows, task].mean() / WEIGHTS[task]
        assert found.log_loss == pytest.approx(wanted, rel=1e-5)
    (result,) = trainer.iterate_batches([batch])
    assert result is not None
    assert result.loss == pytest.approx(each.sum() / SMALL_BATCH, rel=1e-5)
    labels[:, 1] = np.nan
    found = trainer.evaluate([dataclasses.replace(batch, labels=labels)])
    assert found.tasks[0].samples == known[:, 0].sum()
    assert found.tasks[0].auc is not None
    assert found.tasks[1] == Metrics(samples=0)


def test_a_weight_counts_like_copies_of_its_sample():
    """Weights 2 and 0, and all others 1, train as the batch with copies in their
    place."""
    one = SMALL_DATA.train_batch(0, SMALL_BATCH)
    weights = np.ones(SMALL_BATCH, np.float32)
    weights[:4], weights[4:8] = 2, 0
    order = np.arange(SMALL_BATCH)
    order[4:8] = order[:4]
    copies = dataclasses.replace(
        one,
        dense=one.dense[order],
        ids={name: ids[order] for name, ids in one.ids.items()},
        labels=one.labels[order],
    )
    losses, logits = [], []
    for batch in (dataclasses.replace(one, sample_weights=weights), copies):
        trainer = tasks_trainer(Sum(), gpus=4)
        (result,) = trainer.iterate_batches([batch])
        assert result is not None
        losses.append(result.loss)
        metrics = trainer.evaluate([batch])
        ((_, scored),) = trainer.predict([batch])
        logits.append(np.asarray(scored)[8:])
        losses.append(metrics.log_loss)
    assert losses[:2] == pytest.approx(losses[2:], rel=1e-5)
    np.testing.assert_allclose(*logits, rtol=1e-5, atol=1e-6)


def test_a_mean_over_the_batch_takes_no_weights():
    trainer = small_trainer(Sum(), 1, loss=lambda logits, *_: logits.mean())
    batch = SMALL_DATA.train_batch(0, SMALL_BATCH)
    weighted = dataclasses.replace(batch, sample_weights=np.ones(SMALL_BATCH))
    with pytest.raises(ValueError, match="of each sample, since samples have"):
        list(trainer.iterate_batches([weighted]))


def test_batches_with_and_without_weights_do_not_mix():
    trainer = tasks_trainer(Sum())
    batch = SMALL_DATA.train_batch(0, SMALL_BATCH)
    list(trainer.iterate_batches([batch]))
    weighted = dataclasses.replace(batch, sample_weights=np.ones(SMALL_BATCH))
    with pytest.raises(DataError, match="this batch has some, must be like the first"):
        list(trainer.iterate_batches([weighted]))


def test_a_model_for_other_labels_is_refused():
    with pytest.raises(UserError, match=r"logits of shape \(16,\), must be \(16, 2\)"):
        list(tasks_trainer(Sum()).iterate_batches([batch_of(0)]))
    trainer = tasks_trainer(Sum())
    list(trainer.iterate_batches([SMALL_DATA.train_batch(0, SMALL_BATCH)]))
    with pytest.raises(DataError, match=r"labels: shape is \(16, 2\), must be \(16,\)"):
        list(trainer.iterate_batches([batch_of(1)]))
