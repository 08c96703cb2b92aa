"""Several labels a sample, and samples with weights: one loss, on every mesh."""

from __future__ import annotations

import dataclasses

import numpy as np
import optax
import pytest
from embark_kernels import SGD
from flax import nnx

from embark_jax import models
from embark_jax.config.models import MMoEConfig
from embark_jax.data import Batch, DataError, SyntheticClicks
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.planner import plan
from embark_jax.plans import fleet
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.train.losses import BinaryCrossEntropy
from embark_jax.train.trainer import Trainer

TABLES = (TableSpec("a", 40, 4, init_scale=1.0), TableSpec("b", 9, 4, init_scale=1.0))
FEATURES = (FeatureSpec("a"), FeatureSpec("b"))
BATCH = 16
DATA = SyntheticClicks(
    TABLES, FEATURES, dense_features=1, train_samples=160, test_samples=16
)
WEIGHTS = 1.0, 0.25


def batch_of(step):
    batch = DATA.train_batch(step, BATCH)
    second = (batch.ids["a"][:, 0] % 2).astype(np.float32)
    labels = np.stack([batch.labels, second], axis=1)
    return dataclasses.replace(batch, labels=labels)


def halves(batch):
    """Evaluations take batches of the plan's size, which is that of a micro-batch."""
    for part in (slice(0, BATCH // 2), slice(BATCH // 2, BATCH)):
        ids = {name: each[part] for name, each in batch.ids.items()}
        yield Batch(batch.dense[part], ids, batch.labels[part])


def make_trainer(model, gpus=1, micro_batches=1):
    forced = {"a": ForcedPlacement("rb" if gpus > 1 else "dp")}
    machines = fleet.load("this-machine", 1, gpus)
    planned = plan(TABLES, FEATURES, machines, BATCH // micro_batches, forced=forced)
    return Trainer(
        model,
        EmbeddingCollection(planned, planned.make_mesh()),
        dense_optimizer=optax.sgd(0.1),
        embedding_optimizer=SGD(0.5),
        loss=BinaryCrossEntropy(task_weights=WEIGHTS),
        micro_batches=micro_batches,
    )


def mmoe():
    config = MMoEConfig(tasks=("click", "like"), experts=2, expert=(4,), tower=(3,))
    return models.build(config, {"a": (4,), "b": (4,)}, 1, nnx.Rngs(0))


@pytest.mark.slow
def test_a_mesh_and_micro_batches_change_nothing():
    losses, logits = [], []
    for gpus, micro_batches in ((1, 1), (4, 2)):
        trainer = make_trainer(mmoe(), gpus, micro_batches)
        batches = [batch_of(step) for step in range(3)]
        parts = [part for each in batches for part in halves(each)]
        first = [np.asarray(each) for _, each in trainer.predict(parts[:2])]
        p = 1 / (1 + np.exp(-np.concatenate(first).astype(np.float64)))
        y = batches[0].labels
        each = -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean(axis=0)
        found = [result.loss for result in trainer.iterate_batches(batches)]
        assert found[0] == pytest.approx(each @ WEIGHTS, rel=1e-5)
        losses.append(found)
        logits.append([np.asarray(each) for _, each in trainer.predict(parts)])
        metrics = trainer.evaluate(parts)
        assert len(metrics.tasks) == 2
    np.testing.assert_allclose(*losses, rtol=1e-5)
    np.testing.assert_allclose(*logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gpus", [1, 4])
def test_a_weight_counts_like_copies_of_its_sample(gpus):
    """Weights 2 and 0, and all others 1, train as the batch with copies in their
    place."""
    one = DATA.train_batch(0, BATCH)
    weights = np.ones(BATCH, np.float32)
    weights[:4], weights[4:8] = 2, 0
    order = np.arange(BATCH)
    order[4:8] = order[:4]
    copies = dataclasses.replace(
        one,
        dense=one.dense[order],
        ids={name: ids[order] for name, ids in one.ids.items()},
        labels=one.labels[order],
    )
    losses, logits = [], []
    for batch in (dataclasses.replace(one, sample_weights=weights), copies):
        trainer = make_trainer(One(), gpus)
        result = trainer.train([batch])
        assert result is not None
        losses.append(result.loss)
        metrics = trainer.evaluate([batch])
        ((_, scored),) = trainer.predict([batch])
        logits.append(np.asarray(scored)[8:])
        losses.append(metrics.log_loss)
    assert losses[:2] == pytest.approx(losses[2:], rel=1e-5)
    np.testing.assert_allclose(*logits, rtol=1e-5, atol=1e-6)


def test_batches_with_and_without_weights_do_not_mix():
    trainer = make_trainer(One())
    batch = DATA.train_batch(0, BATCH)
    trainer.train([batch])
    weighted = dataclasses.replace(batch, sample_weights=np.ones(BATCH))
    with pytest.raises(DataError, match="this batch has some, must be like the first"):
        trainer.train([weighted])


class One(nnx.Module):
    """A model for a single label."""

    def __call__(self, dense, embeddings):
        return sum(each.sum(axis=1) for each in embeddings.values())


def test_a_model_for_other_labels_is_refused():
    with pytest.raises(ValueError, match=r"logits of shape \(16,\), must be \(16, 2\)"):
        make_trainer(One()).train([batch_of(0)])
    trainer = make_trainer(One())
    trainer.train([DATA.train_batch(0, BATCH)])
    with pytest.raises(DataError, match=r"labels: shape is \(16, 2\), must be \(16,\)"):
        trainer.train([batch_of(1)])
