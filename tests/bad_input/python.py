"""The names that cases in Python use: the package, a small model, good batches."""

import dataclasses
import functools
import json
import pkgutil
from collections.abc import Callable
from pathlib import Path  # noqa: F401 of cases
from typing import Any

import jax
import numpy as np
import optax  # noqa: F401 of cases
from flax import nnx

import embark_jax as ej
from embark_jax.config.models import MODELS
from embark_jax.train.device_batch import put_batch
from tests import builders
from tests.builders import assert_equal_states, snapshot

SIZE = 8
TABLE, FEATURE = ej.TableSpec("user", 300, 4), ej.FeatureSpec("user")
TABLES = [TABLE, ej.TableSpec("item", 50, 4)]
FEATURES = [FEATURE, ej.FeatureSpec("items", "item", hotness=3)]


def plan(**options: Any) -> ej.Plan:
    """``ej.plan`` of one table, with these arguments."""
    fleet = ej.fleets.this_machine()
    request = {"tables": [TABLE], "features": [FEATURE], "fleet": fleet, "batch": 32}
    return ej.plan(**request | options)


def forced(*arguments: Any, **options: Any) -> ej.Plan:
    return plan(forced={"user": ej.ForcedPlacement(*arguments, **options)})


def model(kind: str, shapes: dict, dense: int = 0, **options: Any) -> nnx.Module:
    """A model of embeddings of these shapes."""
    make = pkgutil.resolve_name(MODELS[kind])
    return make(shapes, dense, **options, rngs=nnx.Rngs(0))


def other_statistics() -> ej.Statistics:
    """Statistics of a feature that the model does not have."""
    bags = {"mean_hotness": 1.0, "max_hotness": 1, "ids_seen": 9}
    others = {"version": 2, "samples": 9, "features": {"item": bags}, "tables": {}}
    return ej.Statistics.from_json(json.dumps(others))


def make_trainer(**options: Any) -> ej.Trainer:
    """Of a small model on one device."""
    fleet = ej.fleets.this_machine()
    planned = ej.plan(TABLES, FEATURES, fleet, SIZE, optimizer="adagrad")
    return builders.make_trainer(planned, **options)


shared_trainer = functools.cache(make_trainer)
"""No call below changes it: that is what they show."""


def batch(samples: int = SIZE, **changes: Any) -> ej.Batch:
    """A good batch, but for the changes."""
    ids = {
        "user": np.arange(samples)[:, None],
        "items": np.tile([1, 2, -1], (samples, 1)),
    }
    labels = (np.arange(samples) % 2).astype(np.float32)
    good = ej.Batch(np.zeros((samples, 2), np.float32), ids, labels)
    return dataclasses.replace(good, **changes)


USER, LABELS, DENSE = batch().ids["user"], batch().labels, batch().dense
FLOATS = np.zeros((SIZE, 1), np.float32)
ON_DEVICE = {name: np.asarray(x, np.int32) for name, x in batch().ids.items()}


def ids(**changes: Any) -> ej.Batch:
    """A batch whose ids of some features are changed."""
    return batch(ids={**batch().ids, **changes})


class Always:
    """A data set of one batch."""

    def __init__(self, only: ej.Batch):
        self._only = only

    def train_batch(self, step: int, batch_size: int) -> ej.Batch:
        return self._only


OTHER_DATA = ej.SyntheticClicks(
    [ej.TableSpec("user", 9000, 4)], [FEATURE], dense_features=2
)


def unchanged(use: Callable[..., Any]) -> Callable[..., Any]:
    """A call that must leave the whole state of the trainer as it is."""

    def call(given: Any) -> Any:
        trainer = shared_trainer()
        before = snapshot(trainer)
        try:
            return use(trainer, given)
        finally:
            assert trainer.step == 0
            assert_equal_states(snapshot(trainer), before)

    return call


train = unchanged(lambda trainer, bad: list(trainer.iterate_batches([bad])))
predict = unchanged(lambda trainer, bad: [*trainer.predict([bad])])
evaluate = unchanged(lambda trainer, bad: trainer.evaluate([bad]))
fit = unchanged(lambda trainer, data: trainer.fit(data, steps=1, progress=False))
route = unchanged(lambda trainer, given: trainer.embeddings.route(given, {}))


@unchanged
def apply(trainer: ej.Trainer, bad: ej.Batch) -> None:
    trainer.start(put_batch(bad, trainer.embeddings.plan, trainer.embeddings.mesh))


def with_64_bits() -> ej.EmbeddingCollection:
    planned = plan()
    return jax.enable_x64(True)(ej.EmbeddingCollection)(planned, planned.make_mesh())
