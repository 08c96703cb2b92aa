"""Each kind of table, with each option of a step, through each event of a run: it
trains as if nothing had been.

The expected run has all rows on devices, room for any batch, and no event. Options go
together as far as they keep the order of sums, and all events are in one run.
"""

from typing import Any

import numpy as np
import pytest

import embark_jax as ej
from embark_jax.train.results import NonFiniteLossError
from tests.matrix.runs import KINDS, batches, rows_of, trainer_of

STEPS, MORE = 12, 2
"""On the first mesh, and then on another one."""
IN_16_BITS: dict[str, Any] = {
    "dense_wire": "bfloat16",
    "wire": ej.Wire("bfloat16", "float32"),
    "optimizer": ej.RowwiseAdagrad(0.5),
}
"""The expected run has these options, too."""
OPTIONS: dict[str, dict[str, Any]] = {
    "16 bits and buffers that overflow": IN_16_BITS | {"capacity": 3},
    "another order of sums": {"micro_batches": 2, "exchange": "hierarchical"},
}
FLOAT32 = {"rtol": 1e-5, "atol": 1e-6}
BFLOAT16 = {"rtol": 2**-8, "atol": 2**-8}
"""What lies between two bfloat16, of values up to 1 and beyond."""


class Run:
    """A run of a kind of table, and its losses by step."""

    def __init__(self, kind: str, options: dict[str, Any], folder):
        self._kind, self._options, self._folder = kind, options, folder
        self.trainer = trainer_of(KINDS[kind], **options)
        self.losses: dict[int, float] = {}

    def train(self, steps: int, bad: int | None = None):
        """Yields the number of each step that is done."""
        first = self.trainer.step
        for result in self.trainer.iterate_batches(batches(first, first + steps, bad)):
            self.losses[result.step] = result.loss
            yield result.step

    def scored(self) -> None:
        """Between steps in flight, on rows that no step has seen."""
        for step in self.train(2):
            self.trainer.evaluate(batches(step + 7, step + 9))

    def left_early(self) -> None:
        before = self.trainer.step
        next(self.train(STEPS))
        assert before + 1 < self.trainer.step < STEPS - 4, "steps were in flight"

    def one_batch_at_a_time(self) -> None:
        """No route is made ahead."""
        for _ in range(2):
            list(self.train(1))

    def a_refused_batch(self) -> None:
        """Those behind it are on their way."""
        bad = self.trainer.step + 1
        with pytest.raises(NonFiniteLossError):
            list(self.train(STEPS, bad))
        assert self.trainer.step == bad

    def resumed(self, kind: str = "", **changes: Any) -> None:
        """From a checkpoint, in a trainer that has trained on other batches."""
        saved, rows = self.trainer, rows_of(self.trainer)
        options = self._options | {"capacity": None} | changes
        self.trainer = trainer_of(KINDS[kind or self._kind], **options)
        list(self.trainer.iterate_batches(batches(20, 22)))
        with ej.Checkpointer(self._folder, {"seed": 1}, keep=1) as checkpoints:
            checkpoints.save(saved.whole_state(), saved.step, saved.embeddings, {})
            self.trainer.load(checkpoints)
        np.testing.assert_array_equal(rows_of(self.trainer), rows)

    def resumed_on_another_mesh(self) -> None:
        """Rows of cached tables go to devices."""
        resident = "dynamic" not in self._kind and KINDS[self._kind].resident
        self.resumed(resident or self._kind, mesh=(1, 2))


EVENTS = (
    Run.scored,
    Run.left_early,
    Run.one_batch_at_a_time,
    Run.a_refused_batch,
    Run.resumed,
)


@pytest.fixture(scope="module")
def expected():
    """Losses of runs in which nothing happens, each made once, and the rows before and
    after the last steps."""
    made = {}

    def run(kind: str, option: str, folder):
        options = OPTIONS[option].items() & IN_16_BITS.items()
        case = kind, *sorted(options, key=str)
        if case not in made:
            run = Run(kind, dict(options), folder)
            rows = []
            for steps in (STEPS, MORE):
                list(run.train(steps))
                rows.append(rows_of(run.trainer))
            made[case] = run.losses, rows
        return made[case]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_trains_as_if_nothing_had_been(kind, option, expected, tmp_path):
    run = Run(kind, OPTIONS[option], tmp_path)
    first = run.trainer
    for event in EVENTS:
        event(run)
    list(run.train(STEPS - run.trainer.step))
    losses, rows = expected(KINDS[kind].resident or kind, option, tmp_path)
    same_order = kind != "dynamic in RB" and "order" not in option
    near = BFLOAT16 if "16 bits" in kind or "16 bits" in option else FLOAT32
    if kind == "dynamic in RB":  # owners add up, and keys have other owners: each step
        near = {**near, "atol": STEPS * near["atol"]}  # rounds other sums

    def check(rows, **tolerance):
        """Losses and rows, but for those of a dynamic table that none looked up."""
        steps = list(run.losses)
        mine, theirs = ([each[step] for step in steps] for each in (run.losses, losses))
        np.testing.assert_allclose(mine, theirs, **tolerance)
        found = rows_of(run.trainer)
        there = ~np.isnan(found)
        assert there.all() == ("dynamic" not in kind)
        np.testing.assert_allclose(found[there], rows[there], **tolerance)

    check(rows[0], **{"rtol": 0} if same_order else near)
    if "capacity" in OPTIONS[option]:
        assert first.recompilations > 0
    run.resumed_on_another_mesh()
    list(run.train(MORE))
    check(rows[1], **near)
