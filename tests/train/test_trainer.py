"""The trainer: no batch is lost or applied twice."""

import logging

import jax
import numpy as np
import pytest

from embark_jax.embedding.device_batch import put_batch
from embark_jax.plans.capacities import rows_of
from embark_jax.train.loop import STEPS_IN_FLIGHT
from tests.builders import assert_equal_states, losses, snapshot
from tests.thorough import thorough
from tests.train.trainers import (
    AMPLE,
    BATCH,
    ROWS,
    Clicks,
    clicks_trainer,
)


def test_steps_in_flight_change_nothing(trainer, undisturbed):
    expected, states = undisturbed
    assert losses(trainer.iterate(Clicks(), 10)) == expected
    assert_equal_states(snapshot(trainer), states[10])


TIGHT = {"rb_2_split": 16, "ub_4": 1}
TIGHT_ROWS = AMPLE | {rows_of("rb_2_split"): 1, rows_of("ub_4"): 3}


@pytest.mark.parametrize(
    ("capacities", "wide_from"),
    thorough(
        [(TIGHT, 0), (TIGHT, 4), (TIGHT_ROWS, 4)],
        [(TIGHT, 4), (TIGHT_ROWS, 4)],
        unpack=True,
    ),
)
def test_an_overflow_changes_no_bit(trainer, capacities, wide_from):
    """Few rows need few places; from step ``wide_from`` on, batches need more."""
    data = Clicks(spread=lambda step: 1 if step < wide_from else ROWS)
    tight = clicks_trainer(capacities)
    assert losses(tight.iterate(data, 8)) == losses(trainer.iterate(data, 8))
    assert 1 <= tight.recompilations <= 3
    assert_equal_states(snapshot(tight), snapshot(trainer))
    assert trainer.recompilations == 0


def test_batches_are_copied_while_devices_work(trainer, monkeypatch):
    """When the first step is waited for, those behind it are on the devices."""
    copied = []

    def record(batch, *args):
        copied.append(batch)
        return put_batch(batch, *args)

    monkeypatch.setattr("embark_jax.train.loop.put_batch", record)
    assert next(trainer.iterate(Clicks(), 9)).step == 1
    assert len(copied) > 1 + STEPS_IN_FLIGHT


@pytest.mark.slow
def test_capacities_grow_no_more_than_needed():
    tight = clicks_trainer({"rb_2_split": 64, "ub_4": 2})
    results = list(tight.iterate(Clicks(), 8))
    capacities = tight.embeddings.plan.capacities
    assert capacities["rb_2_split"] == 64
    assert 2 < capacities["ub_4"] <= 32, "a device has at most 16 ids of table b"
    assert all(0 < used <= 1 for result in results for used in result.used.values())


def test_an_overflow_in_evaluation_changes_no_bit(trainer):
    tight = clicks_trainer({"rb_2_split": 1, "ub_4": 1})
    batches = list(Clicks().test_batches(BATCH))
    found, expected = (
        [np.asarray(logits) for _, logits in each.predict(batches)]
        for each in (tight, trainer)
    )
    assert [len(each) for each in found] == [BATCH, BATCH - 5]
    assert tight.recompilations > trainer.recompilations == 0
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert_equal_states(snapshot(tight), snapshot(trainer))


def test_each_step_compiles_once(caplog):
    data = Clicks()
    with jax.log_compiles(), caplog.at_level(logging.WARNING, "jax"):
        trainer = clicks_trainer()
        for stop in (2, 3, 6):
            list(trainer.iterate(data, stop))
            trainer.evaluate(data.test_batches(BATCH))
        compiled = [
            record.getMessage().split()[4]
            for record in caplog.records
            if record.getMessage().startswith("Finished XLA compilation of")
        ]
    assert compiled.count("jit(train_step)") == 1
    assert compiled.count("jit(score_step)") == 1
