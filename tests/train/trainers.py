"""A small trainer, its data, and what tests ask of both."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import optax
from embark_kernels import Adagrad
from flax import nnx

from embark_jax import models
from embark_jax.data import Batch
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.plans.plan import Plan
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.plans.wire import FLOAT32
from embark_jax.train.trainer import Trainer

BATCH, DENSE, ROWS = 32, 2, 64
TABLES = (TableSpec("a", ROWS, 4), TableSpec("b", ROWS, 4))
FEATURES = (FeatureSpec("a", hotness=2), FeatureSpec("b", hotness=2, pooling="mean"))
PLACED = (
    Placement(TABLES[0], "rb", 2, 2, (0, 1, 2, 3)),
    Placement(TABLES[1], "ub", 3, 1, (3, 1, 0)),
)
AMPLE = {"rb_2_split": 64, "ub_4": 64}
"""More than all ids that a device has in a batch."""


class Clicks:
    """A ``Dataset``: the ids of step t (from 0) are of the first ``spread(t)`` rows."""

    features = FEATURES
    dense_features = DENSE

    def __init__(self, spread=lambda step: ROWS, spoil=lambda step, batch: batch):
        self._spread, self._spoil = spread, spoil

    def train_batch(self, step: int, batch_size: int) -> Batch:
        rng = np.random.default_rng([step])
        ids = rng.integers(0, self._spread(step), (2, batch_size, 2), np.int32)
        batch = Batch(
            dense=rng.standard_normal((batch_size, DENSE), np.float32),
            ids=dict(zip("ab", ids, strict=True)),
            labels=rng.integers(0, 2, batch_size).astype(np.float32),
        )
        return self._spoil(step, batch)

    def test_batches(self, batch_size):
        yield self.train_batch(1000, batch_size)
        yield self.train_batch(1001, batch_size - 5)


def make_trainer(
    capacities=AMPLE,
    model=None,
    dense_optimizer=None,
    overlap=False,
    placed=PLACED,
    micro_batches=1,
    wire=FLOAT32,
    on_bad_id="error",
) -> Trainer:
    plan = Plan(FEATURES, placed, 2, 2, BATCH // micro_batches, capacities)
    embeddings = EmbeddingCollection(plan, plan.make_mesh(), wire=wire)
    shapes = embeddings.output_shapes
    return Trainer(
        model or models.DLRM(shapes, DENSE, (4,), (4, 1), rngs=nnx.Rngs(0)),
        embeddings,
        dense_optimizer=dense_optimizer or optax.sgd(0.1, momentum=0.9),
        embedding_optimizer=Adagrad(0.1),
        micro_batches=micro_batches,
        overlap=overlap,
        seed=1,
        on_bad_id=on_bad_id,
    )


def snapshot(trainer: Trainer):
    """All of the state, copied to the host."""
    return jax.tree.map(np.array, trainer.state)


def assert_equal_states(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def losses(results):
    return [(result.step, result.loss) for result in results]


def spoil_at(bad_step, **change):
    """Replaces arrays of the batch of step ``bad_step``, counted from 1."""

    def spoil(step, batch):
        if step + 1 != bad_step:
            return batch
        return dataclasses.replace(batch, **change)

    return spoil


# Far too large, though the loss of the small model is finite: the squares of gradients
# are not.
HUGE = np.full((BATCH, DENSE), 3e38, np.float32)
