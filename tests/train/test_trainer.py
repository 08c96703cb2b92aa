"""The trainer: no batch is lost or applied twice."""

import jax
import numpy as np

from embark_jax.metrics.pointwise import evaluate
from embark_jax.plans.capacities import rows_of
from tests import runs
from tests.builders import assert_equal_states, losses, snapshot
from tests.train.trainers import BATCH, ROWS, Clicks, clicks_trainer


def test_steps_in_flight_change_nothing(trainer, undisturbed):
    expected, states = undisturbed
    assert losses(trainer.iterate(Clicks(), 10)) == expected
    assert_equal_states(snapshot(trainer), states[10])


def test_an_overflow_changes_no_bit(trainer):
    """Few rows need few places; from step 4 on, batches need more of each kind."""
    capacities = {"rb_2_split": 16, "ub_4": 1}
    rows = {rows_of("rb_2_split"): 1, rows_of("ub_4"): 3}
    data = Clicks(spread=lambda step: 1 if step < 4 else ROWS)
    tight = clicks_trainer(capacities | rows)
    assert losses(tight.iterate(data, 8)) == losses(trainer.iterate(data, 8))
    assert 1 <= tight.recompilations <= 3
    # A device has at most 16 ids of table b.
    assert 1 <= tight.embeddings.plan.capacities["ub_4"] <= 32
    assert_equal_states(snapshot(tight), snapshot(trainer))
    assert trainer.recompilations == 0


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
    labels = np.concatenate([batch.labels for batch in batches])
    assert tight.evaluate(batches) == evaluate(labels, np.concatenate(found))


def test_each_step_compiles_once():
    data = Clicks()
    with runs.compilations() as compiled:
        trainer = clicks_trainer()
        for stop in (2, 3, 6):
            list(trainer.iterate(data, stop))
            trainer.evaluate(data.test_batches(BATCH))
    assert compiled.count("jit(train_step)") == 1
    assert compiled.count("jit(score_step)") == 1
