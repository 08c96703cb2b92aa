"""One's own batches, through every method that takes them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import embark_jax as ej
from embark_jax.embedding.device_batch import put_batch
from tests import builders
from tests.bad_input.case import Case
from tests.builders import assert_equal_states, snapshot

SIZE = 8
TABLES = [ej.TableSpec("user", 300, 4), ej.TableSpec("item", 50, 4)]
FEATURES = [ej.FeatureSpec("user"), ej.FeatureSpec("items", "item", hotness=3)]


def make_trainer(**options: Any) -> ej.Trainer:
    """Of a small model on one device."""
    plan = ej.plan(TABLES, FEATURES, ej.fleets.this_machine(), SIZE)
    return builders.make_trainer(plan, **options)


shared_trainer = functools.cache(make_trainer)
"""No call below changes it: that is what they show."""


def batch(samples: int = SIZE, **changes: Any) -> ej.Batch:
    """A good batch, but for the changes."""
    ids = {
        "user": np.arange(samples)[:, None],
        "items": np.tile([1, 2, -1], (samples, 1)),
    }
    labels = np.arange(samples) % 2
    good = ej.Batch(np.zeros((samples, 2), np.float32), ids, labels.astype(np.float32))
    return dataclasses.replace(good, **changes)


def ids(**changes: Any) -> ej.Batch:
    """A batch whose ids of some features are changed."""
    return batch(ids={**batch().ids, **changes})


class Always:
    """A data set of one batch."""

    def __init__(self, only: ej.Batch):
        self._only = only

    def train_batch(self, step: int, batch_size: int) -> ej.Batch:
        return self._only


def untouched(use: Callable[[ej.Trainer], Any]) -> Callable[[], Any]:
    """A call that must leave the whole state as it is."""

    def call():
        trainer = shared_trainer()
        before = snapshot(trainer)
        try:
            return use(trainer)
        finally:
            assert trainer.step == 0
            assert_equal_states(snapshot(trainer), before)

    return call


def _train(given: str, bad: ej.Batch, *says: str) -> Case:
    return Case(given, untouched(lambda trainer: trainer.train([bad])), says)


def _predict(given: str, bad: ej.Batch, *says: str) -> Case:
    return Case(given, untouched(lambda trainer: [*trainer.predict([bad])]), says)


def _evaluate(given: str, bad: ej.Batch, *says: str) -> Case:
    return Case(given, untouched(lambda trainer: trainer.evaluate([bad])), says)


USER, LABELS = batch().ids["user"], batch().labels
NAN = np.full((SIZE, 2), np.nan, np.float32)

TRAIN = [
    _train(
        "an id beyond its table",
        ids(user=USER + 293),
        "sample 7: ids of feature 'user', column 0: value is 300",
        "must be from 0 to 299",
    ),
    _train("a negative id", ids(user=USER - 7), "'user', column 0: value is -7, must"),
    _train(
        "ids that are floats",
        ids(user=USER + 0.5),
        "ids of feature 'user': dtype is float64, must be an integer type",
    ),
    _train("ids in one dimension", ids(user=USER[:, 0]), "'user': shape is (8,), must"),
    _train("ids of fewer samples", ids(user=USER[:4]), "'user': shape is (4, 1), must"),
    _train(
        "a bag with too many ids",
        ids(user=np.tile(USER, 2)),
        "a bag has more ids than the declared hotness, 1",
    ),
    _train(
        "a feature left out",
        batch(ids={"user": USER}),
        "ids of features items: missing",
    ),
    _train(
        "a feature that the model does not know",
        ids(town=USER),
        "ids of features town: not declared by the model",
    ),
    _train(
        "weights that the model does not take",
        batch(weights={"user": USER.astype(np.float32)}),
        "weights of features user: not declared by the model",
    ),
    _train(
        "labels of 5",
        batch(labels=LABELS * 5),
        "sample 1: labels: value is 5.0, must be from 0 to 1",
    ),
    _train(
        "labels in a column",
        batch(labels=LABELS[:, None]),
        "labels: shape is (8, 1), must be (8,)",
    ),
    _train(
        "labels of text", batch(labels=np.array(["yes"] * SIZE)), "labels: dtype is"
    ),
    _train(
        "labels that are not numbers", batch(labels=LABELS * np.nan), "value is nan"
    ),
    _train(
        "dense values that are not numbers",
        batch(dense=NAN),
        "sample 0: dense, column 0: value is nan, must be finite",
    ),
    _train(
        "dense values of fewer samples", batch(dense=NAN[:4] * 0), "dense: shape is"
    ),
    _train("a batch that is too small", batch(4), "batch has 4 samples, must have 8"),
    _train("a batch that is too large", batch(16), "batch has 16 samples, must have 8"),
]


def _apply(given: str, bad: ej.Batch, *says: str) -> Case:
    def call(trainer):
        trainer.apply(put_batch(bad, trainer.embeddings.mesh, len(bad)))

    return Case(given, untouched(call), says)


def _route(given: str, bad: dict[str, Any], *says: str) -> Case:
    call = untouched(lambda trainer: trainer.embeddings.route(bad, {}))
    return Case(given, call, says)


DEVICE_IDS = {name: each.astype(np.int32) for name, each in batch().ids.items()}

OTHERS = [
    Case(
        "a data set of another model to fit",
        untouched(
            lambda trainer: trainer.fit(
                ej.SyntheticClicks(
                    [ej.TableSpec("user", 9000, 4)],
                    [ej.FeatureSpec("user")],
                    dense_features=2,
                ),
                steps=1,
                progress=False,
            )
        ),
        ("ids of features items: missing",),
    ),
    Case(
        "an id beyond its table, to fit",
        untouched(lambda trainer: trainer.fit(Always(ids(user=USER + 293)), 1)),
        ("value is 300",),
    ),
    _predict(
        "an id beyond its table, to predict", ids(user=USER + 293), "value is 300"
    ),
    _predict(
        "a feature left out, to predict", batch(ids={"user": USER}), "items: miss"
    ),
    _predict("a batch that is too large, to predict", batch(16), "must have at most 8"),
    _evaluate("a negative id, to evaluate", ids(user=USER - 7), "value is -7, must be"),
    _evaluate(
        "labels of 5, to evaluate", batch(labels=LABELS * 5), "value is 5.0, must"
    ),
    _apply(
        "labels in a column, to apply",
        batch(labels=np.zeros((SIZE, 1), np.float32)),
        "labels are float32 of shape (8, 1), must be float32 of shape (8,)",
    ),
    _apply(
        "whole numbers for dense values, to apply",
        batch(dense=np.zeros((SIZE, 2), np.int32)),
        "dense values are int32 of shape (8, 2), must be float32",
    ),
    _apply(
        "a batch that is too large, to apply",
        batch(16),
        "of shape (16, 1), must be int32 or int64 of shape (8, 1)",
    ),
    _apply(
        "ids that are floats, to apply",
        batch(ids={**DEVICE_IDS, "user": np.zeros((SIZE, 1), np.float32)}),
        "'user'",
        "float32",
    ),
    _route(
        "ids that are floats, to route",
        {**DEVICE_IDS, "user": np.zeros((SIZE, 1), np.float32)},
        "'user'",
        "float32",
    ),
    _route("a feature left out, to route", {"user": DEVICE_IDS["user"]}, "items"),
    _route(
        "ids in one dimension, to route",
        {**DEVICE_IDS, "user": DEVICE_IDS["user"][:, 0]},
        "'user'",
        "(8,)",
    ),
    Case(
        "a word for what becomes of bad ids",
        lambda: make_trainer(on_bad_id="ignore"),
        ("on_bad_id is 'ignore', must be one of error, drop, hash",),
    ),
    Case(
        "no micro-batches",
        lambda: make_trainer(micro_batches=0),
        ("micro_batches is 0, must be at least 1",),
    ),
    Case(
        "dense layers that lie in no known way",
        lambda: make_trainer(dense="halves"),
        ("dense is 'halves', must be one of replicated, zero1, tensor",),
    ),
    Case(
        "JAX set to 64 bits",
        lambda: jax.enable_x64(True)(make_trainer)(),
        ("JAX is set to 64 bits", "unset it"),
    ),
]

ENTRANCES = {"Trainer.train": TRAIN, "other uses of batches in Python": OTHERS}
