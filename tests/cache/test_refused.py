"""A refused batch, and those behind it, leave no mark in cached tables."""

import dataclasses

import jax
import numpy as np
import pytest

import embark_jax as ej
from embark_jax.train.cached_rows import TooFewSlotsError
from embark_jax.train.results import BadIdError, NonFiniteLossError
from tests.builders import losses
from tests.matrix.runs import (
    BATCH,
    OTHERS,
    POOLED,
    Kind,
    batches,
    dynamic,
    fixed,
    trainer_of,
)

SLOTS = 60
FEW = {"slots": SLOTS, "max_slots": SLOTS, "evicted": "discard"}
KINDS = {
    "on host": fixed(tier="host", slots=SLOTS),
    "lru": dynamic(**FEW),
    "lfu": dynamic(**FEW, evict="lfu"),
    "grows": dynamic(**FEW | {"slots": 8}),
    "goes to the host": dynamic(slots=SLOTS, max_slots=SLOTS),
}


def refused(error: type[Exception]) -> ej.Batch:
    """A batch of rows that no other batch has."""
    (batch,) = batches(5, 6, bad=5)
    ids = batch.ids
    if error is BadIdError:
        ids = {**ids, "other": np.full_like(ids["other"], OTHERS)}
    if error is TooFewSlotsError:
        ids = {**ids, "x": np.arange(3 * BATCH).reshape(BATCH, 3)}
        ids["mean"] = 3 * BATCH + np.arange(2 * BATCH).reshape(BATCH, 2)
    return dataclasses.replace(batch, ids=ids)


def assert_alike(trainer: ej.Trainer, expected: ej.Trainer) -> None:
    found, wanted = trainer.table("x"), expected.table("x")
    np.testing.assert_array_equal(found.keys, wanted.keys)
    np.testing.assert_array_equal(found.rows, wanted.rows)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_batch_leaves_no_mark(kind):
    """Three batches behind it are on their way, too. Training goes on as if none had
    come: with the same rows, of which the same leave their slots."""
    trainer, expected = (trainer_of(Kind(KINDS[kind]), (1, 1)) for _ in range(2))
    trainer.check = lambda batch: batch
    for error in (NonFiniteLossError, BadIdError, TooFewSlotsError):
        good = list(batches(expected.step, expected.step + 6))
        with pytest.raises(error):
            list(trainer.iterate_batches([*good, refused(error), *batches(20, 23)]))
        list(expected.iterate_batches(good))
        assert trainer.step == expected.step
        assert_alike(trainer, expected)
    more = list(batches(18, 24))
    steps, others = (losses(t.iterate_batches(more)) for t in (trainer, expected))
    assert steps == others
    assert_alike(trainer, expected)


def test_lookups_without_a_trainer_are_refused():
    """Nobody would bring rows into slots."""
    embeddings = trainer_of(Kind(KINDS["on host"]), (1, 1)).embeddings
    ids = {f.name: np.zeros((BATCH, f.hotness), np.int32) for f in POOLED}
    weights = {"mean": np.ones((BATCH, 2), np.float32)}

    def lookup(storages):
        return embeddings.lookup(storages, embeddings.route(ids, weights))

    with pytest.raises(ValueError, match=r"has slots for some .* ej\.Trainer brings"):
        jax.eval_shape(lookup, embeddings.init(jax.random.key(0)))
