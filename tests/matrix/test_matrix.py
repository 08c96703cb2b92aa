"""Each kind of table, with each option of a step, through each event of a run: it
trains as if nothing had been.

The expected run has all rows on devices, room for any batch, and no event. Of the three
dimensions, each pair of values is in one of the cases.
"""

import functools
from typing import Any

import numpy as np
import pytest

import embark_jax as ej
from embark_jax.train.loop import NonFiniteLossError
from tests.builders import losses
from tests.matrix.runs import KINDS, batches, rows_of, trainer_of

STEPS, EVENT = 8, 5
OPTIONS: dict[str, dict[str, Any]] = {
    "dense gradients in 16 bits": {"dense_wire": "bfloat16"},
    "buffers that overflow": {"capacity": 2},
    "micro-batches": {"micro_batches": 2},
    "one state a row": {"optimizer": ej.RowwiseAdagrad(0.5)},
    "hierarchical exchange": {"exchange": "hierarchical"},
    "rows in 16 bits": {"wire": ej.Wire("bfloat16", "float32")},
}
IN_16_BITS = ("dense gradients in 16 bits", "rows in 16 bits")
ALIKE = (*IN_16_BITS, "one state a row")
"""Options that the expected run has, too."""
ROUNDED = ("micro-batches", "hierarchical exchange", "another mesh", "dynamic in RB")
"""Sums have another order; of RB owners add up, and keys have other owners."""
FLOAT32 = {"rtol": 1e-5, "atol": 1e-6}
BFLOAT16 = {"rtol": 2**-8, "atol": 2**-8}
"""What lies between two bfloat16, of values up to 1 and beyond."""


def resumed(make, trainer, folder, **changes):
    """From a checkpoint, in a trainer that has trained on other batches."""
    found = losses(trainer.iterate_batches(batches(0, EVENT)))
    other = make(**changes)
    list(other.iterate_batches(batches(20, 22)))
    with ej.Checkpointer(folder, {"seed": 1}, keep=1) as checkpoints:
        checkpoints.save(trainer.whole_state(), EVENT, trainer.embeddings, {})
        saved = rows_of(trainer)
        other.load(checkpoints)
    np.testing.assert_array_equal(rows_of(other), saved)
    return other, found


def resumed_on_another_mesh(make, trainer, folder):
    """Rows of cached tables go to devices."""
    return resumed(make, trainer, folder, mesh=(1, 2), tier="device")


def one_batch_at_a_time(make, trainer, folder):
    """No route is made ahead."""
    steps = [trainer.iterate_batches(batches(i, i + 1)) for i in range(EVENT)]
    return trainer, [loss for step in steps for loss in losses(step)]


def left_early(make, trainer, folder):
    found = []
    for result in trainer.iterate_batches(batches(0, STEPS)):
        found.append((result.step, result.loss))
        if result.step == 2:
            break
    assert 2 < trainer.step < STEPS
    return trainer, None


def a_refused_batch(make, trainer, folder):
    """Those behind it are on their way."""
    found = []
    given = batches(0, STEPS, bad=EVENT)
    with pytest.raises(NonFiniteLossError):
        found.extend((r.step, r.loss) for r in trainer.iterate_batches(given))
    assert trainer.step == EVENT
    return trainer, found


def scored(make, trainer, folder):
    """Between steps in flight, on rows that no step has seen."""
    found = []
    for result in trainer.iterate_batches(batches(0, EVENT)):
        found.append((result.step, result.loss))
        trainer.evaluate(batches(result.step + 7, result.step + 9))
    return trainer, found


EVENTS = {
    "resumed": resumed,
    "another mesh": resumed_on_another_mesh,
    "one batch at a time": one_batch_at_a_time,
    "left early": left_early,
    "a refused batch": a_refused_batch,
    "scored": scored,
}
QUICK = "dynamic", "resumed"
"""The pair that the quick suite tries; all others are slow."""
CASES = [
    pytest.param(
        kind,
        list(OPTIONS)[(i + j) % len(OPTIONS)],
        event,
        marks=[] if (kind, event) == QUICK else pytest.mark.slow,
    )
    for i, kind in enumerate(KINDS)
    for j, event in enumerate(EVENTS)
]


@pytest.fixture(scope="module")
def expected():
    """Losses and rows of runs in which nothing happens, each made once."""
    made = {}

    def run(kind: str, option: str):
        case = kind, option if option in ALIKE else None
        if case not in made:
            trainer = trainer_of(KINDS[kind], **OPTIONS[option] if case[1] else {})
            steps = losses(trainer.iterate_batches(batches(0, STEPS)))
            made[case] = steps, rows_of(trainer)
        return made[case]

    return run


@pytest.mark.parametrize(("kind", "option", "event"), CASES)
def test_a_run_trains_as_if_nothing_had_been(kind, option, event, expected, tmp_path):
    def make(tier: str = "", **changes):
        resident = tier and "dynamic" not in kind and KINDS[kind].resident
        return trainer_of(KINDS[resident or kind], **OPTIONS[option], **changes)

    trainer, found = EVENTS[event](make, make(), tmp_path)
    more = losses(trainer.iterate_batches(batches(trainer.step, STEPS)))
    steps, rows = expected(KINDS[kind].resident or kind, option)
    check = check_of(kind, option, event)
    check(np.array([*(found or steps[: -len(more)]), *more]), np.array(steps))
    table = rows_of(trainer)
    there = ~np.isnan(table)  # a dynamic table has the rows that were looked up
    assert there.all() == ("dynamic" not in kind)
    check(table[there], rows[there])
    if "capacity" in OPTIONS[option] and event != "resumed":
        assert trainer.recompilations > 0


def check_of(kind, option, event):
    """Bit for bit, where sums have the same order."""
    if not {kind, option, event} & set(ROUNDED):
        return np.testing.assert_array_equal
    near = BFLOAT16 if option in IN_16_BITS or "16 bits" in kind else FLOAT32
    return functools.partial(np.testing.assert_allclose, **near)
