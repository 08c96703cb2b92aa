"""A small trainer and its data, which may be spoilt."""

import dataclasses

import numpy as np

from embark_jax.data import Batch
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from tests import builders
from tests.builders import DENSE

BATCH, ROWS = 32, 64
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


def clicks_trainer(capacities=AMPLE, placed=PLACED, **options):
    """A trainer of ``Clicks`` on 2 × 2 devices."""
    plan = builders.make_plan(FEATURES, placed, 2, 2, BATCH, capacities)
    return builders.make_trainer(plan, **options)


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
