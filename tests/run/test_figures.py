"""Throughput is that of steps which landed one after the other."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from sklearn.metrics import roc_auc_score

from embark_jax.run import figures as figures_module
from embark_jax.run.figures import MIN_TIMED_STEPS, Figures
from embark_jax.train.results import StepResult
from embark_jax.train.trainer import STEPS_IN_FLIGHT

BATCH = 4


class Loop:
    """Steps that land as the trainer's do, on a clock of their own.

    A step takes a second, and those in flight at a stop land with the last before them:
    the host waits for batches, and there are no more.
    """

    def __init__(self):
        self.now = 0.0
        self.figures = Figures(clock=lambda: self.now)

    def train(self, steps: int, log_every: int) -> list[float | None]:
        """Trains up to a stop; gives what each record says of throughput."""
        said = []
        self.now += 100  # of compilation, or an evaluation
        for step in range(1, steps + 1):
            self.now += step <= steps - STEPS_IN_FLIGHT
            self.figures.add(result(step))
            if step % log_every == 0 or step == steps:
                said.append(self.figures.close()["samples_per_s"])
        assert self.figures.empty
        self.figures.stop()
        return said


def result(step: int) -> StepResult:
    mesh = jax.make_mesh((2,), ("gpu",), axis_types=(AxisType.Auto,))
    by_sample = NamedSharding(mesh, PartitionSpec("gpu"))
    labels = jax.device_put(np.array([0, 1, 0, 1], np.float32), by_sample)
    return StepResult(step, 0.5 + step, labels - 0.5, labels, {"rb": step / 100})


def test_a_step_prints_as_a_line():
    assert str(result(3)) == "StepResult(step=3, loss=3.5, hot=False, refused=None)"


@pytest.mark.parametrize("log_every", [1, 3, 20, 50])
def test_it_is_exact_wherever_it_is_said(log_every):
    loop = Loop()
    for steps in (100, 37, 20):
        said = loop.train(steps, log_every)
        assert set(said) - {None} == {BATCH}
        assert said[-1] == BATCH


@pytest.mark.parametrize("steps", [1, 2, 3, 5, MIN_TIMED_STEPS])
def test_of_too_few_steps_nothing_is_said(steps):
    assert set(Loop().train(steps, log_every=1)) == {None}


def test_a_window_follows_a_change_of_speed():
    now = 0.0
    figures = Figures(clock=lambda: now)
    for seconds in (1.0, 0.25):
        for step in range(1, 41):
            now += seconds
            figures.add(result(step))
        said = figures.close()["samples_per_s"]
    assert said == pytest.approx(BATCH / 0.25, rel=0.3)


def test_a_record_has_the_means_since_the_one_before():
    now = 5.0
    figures = Figures(clock=lambda: now)
    for step in (1, 2, 3):
        figures.add(result(step))
    now = 12.0
    assert figures.close() == {
        "window_steps": 3,
        "window_seconds": 7,
        "loss": 2.5,
        "train_auc": 1.0,
        "samples_per_s": None,
        "capacity_used/rb": 0.03,
    }


def test_the_auc_of_training_is_weighted_and_of_the_last_samples(monkeypatch):
    monkeypatch.setattr(figures_module, "MOST_SAMPLES", 6)
    rng, figures = np.random.default_rng(0), Figures(["a", "b"])
    mesh = jax.make_mesh((2,), ("gpu",), axis_types=(AxisType.Auto,))
    by_sample = NamedSharding(mesh, PartitionSpec("gpu"))
    logits, weights = rng.normal(size=(5, 4, 2)), rng.integers(0, 3, (5, 4))
    labels = np.tile([[0, 1], [1, 0]], (5, 2, 1))
    for step, parts in enumerate(zip(logits, labels, weights, strict=True), 1):
        arrays = (jax.device_put(x.astype(np.float32), by_sample) for x in parts)
        scores, truth, each = arrays
        figures.add(StepResult(step, 0.5, scores, truth, {}, weights=each))
    record = figures.close()
    of_samples = [x.reshape(20, -1)[-6:] for x in (labels, logits, weights)]
    for task, name in enumerate("ab"):
        truth, scores = (x[:, task] for x in of_samples[:2])
        expected = roc_auc_score(truth, scores, sample_weight=of_samples[2][:, 0])
        assert record[f"train_auc/{name}"] == pytest.approx(expected)


@pytest.mark.parametrize("log_every", [7, 60])
def test_steps_of_hot_batches_are_timed_apart(log_every):
    """A third of the batches is all-hot and takes 1 s, the others take 3."""
    now = 0.0
    figures = Figures(hot_batches=True, clock=lambda: now)
    records = []
    for step in range(1, 121):
        hot = step % 3 == 0
        now += 1 if hot else 3
        figures.add(dataclasses.replace(result(step), hot=hot))
        if step % log_every == 0:
            records.append(figures.close())
    shares = [record["hot_batches"] for record in records]
    times = [(record["hot_step_ms"], record["mixed_step_ms"]) for record in records]
    if log_every == 60:
        assert shares == [1 / 3, 1 / 3]
        assert times == [(1000, 3000)] * 2
    else:  # too few steps to time those of a kind
        assert set(shares) == {2 / 7, 3 / 7}
        assert set(times) == {(None, None)}
