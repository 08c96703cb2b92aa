"""Cuts of the dense layers: the losses, gradients and rows of the whole batch."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import embark_jax as ej
from embark_jax.models.interface import MaskedModel, unmasked
from embark_jax.plans.placement import Placement
from embark_jax.train.losses import BinaryCrossEntropy
from tests.builders import Sum, make_plan, make_trainer

BATCH, DENSE, STEPS = 32, 3, 3
USER, ITEM = ej.TableSpec("user", 60, 4), ej.TableSpec("item", 20, 4)
FEATURES = (
    ej.FeatureSpec("user", "user"),
    ej.FeatureSpec("tags", "item", 3, "mean", weighted=True),
    ej.FeatureSpec("past", "item", 5, "none"),
)
DATA = ej.SyntheticClicks(
    [USER, ITEM], FEATURES, dense_features=DENSE, train_samples=BATCH * STEPS, seed=2
)


class TwoTasks(MaskedModel):
    """Two logits of a sample, of dense values, pooled rows, and events with a mask."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.hidden = nnx.Linear(DENSE + 12, 8, rngs=rngs)
        self.last = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, dense, embeddings):
        embeddings, masks = unmasked(embeddings)
        events = jnp.tanh(embeddings["past"] + 1) * masks["past"][..., None].astype(
            dense.dtype
        )
        pooled = embeddings["user"], embeddings["tags"], events.sum(axis=1)
        hidden = self.hidden(jnp.concatenate([dense, *pooled], axis=1))
        return self.last(nnx.relu(hidden))


def batch_of(step: int) -> ej.Batch:
    """With weights of samples, some 0, and sequences of any length."""
    batch, rng = DATA.train_batch(step, BATCH), np.random.default_rng(step)
    past = np.array(batch.ids["past"])
    past[np.arange(5) >= rng.integers(0, 6, (BATCH, 1))] = -1
    return dataclasses.replace(
        batch,
        ids={**batch.ids, "past": past},
        labels=rng.integers(0, 2, (BATCH, 2)).astype(np.float32),
        sample_weights=rng.integers(0, 3, BATCH).astype(np.float32),
    )


def trainer_of(micro_batches: int, **options) -> ej.Trainer:
    placed = (
        Placement(USER, "rb", 2, 1, (0, 1), hot_rows=7),
        Placement(ITEM, "ub", 2, 1, (1, 0)),
    )
    return make_trainer(
        make_plan(FEATURES, placed, 1, 2, BATCH),
        TwoTasks(),
        ej.RowwiseAdagrad(0.1),
        dense_optimizer=optax.sgd(0.1),
        loss=BinaryCrossEntropy(task_weights=(1.0, 0.25)),
        micro_batches=micro_batches,
        **options,
    )


def trained(micro_batches: int, **options) -> list[np.ndarray]:
    trainer = trainer_of(micro_batches, **options)
    results = list(trainer.iterate_batches(batch_of(step) for step in range(STEPS)))
    return [
        np.array([result.loss for result in results]),
        *(np.asarray(result.logits) for result in results),
        *(logits for _, logits in trainer.predict([batch_of(STEPS)])),
        *(trainer.table(name).rows for name in ("user", "item")),
        np.asarray(trainer.state.params["hidden"]["kernel"][...]),
    ]


def test_cuts_of_samples_without_dense_values():
    """In training and in scoring."""
    features, rng = (ej.FeatureSpec("user"),), np.random.default_rng(0)
    plan = make_plan(features, (Placement(USER, "dp"),), 1, 1, BATCH)
    ids = {"user": rng.integers(0, 60, (BATCH, 1)).astype(np.int32)}
    labels = rng.integers(0, 2, BATCH).astype(np.float32)
    batch = ej.Batch(np.zeros((BATCH, 0), np.float32), ids, labels)
    found = []
    for cuts in (1, 4):
        trainer = make_trainer(plan, Sum(), micro_batches=cuts)
        (result,) = trainer.iterate_batches([batch])
        ((_, logits),) = trainer.predict([batch])
        found.append((result.loss, np.asarray(logits), trainer.table("user").rows))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_cuts_change_nothing_beside_rounding():
    for found, one in zip(trained(16), trained(1), strict=True):
        np.testing.assert_allclose(found, one, rtol=1e-5, atol=1e-6)
