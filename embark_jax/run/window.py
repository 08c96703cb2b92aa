"""The figures of the steps since the last record: loss, AUC, throughput, fill."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from embark_jax.metrics.streaming_auc import TrainingAuc
from embark_jax.train.in_flight import STEPS_IN_FLIGHT
from embark_jax.train.outcome import StepResult

MIN_TIMED_STEPS = 10
"""Fewer steps give no throughput: the time of one of them varies."""
_UNDER_WAY = STEPS_IN_FLIGHT + 1
"""Steps that may land together when no further batch comes: those in flight, and one
whose route was made ahead (``train.overlap``)."""


class Window:
    """The steps since the last record.

    Throughput is measured from one landing to another. The first landing after a stop
    waited for a compilation or an evaluation, and the last few steps before one land
    together, without a batch having been made between them; so the measure begins at
    the first, and leaves out the last. Where a window is short, it goes back to steps
    before it.

    Args:
      tasks: names of the labels, if samples have several.
      hot_batches: whether records say how many batches were all-hot, and how long steps
        of both kinds took.
      clock: function that gives seconds.
    """

    def __init__(
        self,
        tasks: Sequence[str] = (),
        hot_batches: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._tasks = tasks
        self._hot_batches = hot_batches
        self._clock = clock
        self._results: list[StepResult] = []
        self._auc = TrainingAuc()
        self._landings: list[float] = []  # since the last stop, as far as needed
        self._kinds: list[bool] = []  # of the steps that landed then: whether all-hot

    @property
    def empty(self) -> bool:
        return not self._results

    def add(self, result: StepResult) -> None:
        """Takes a step that has just landed."""
        self._auc.add(result.logits, result.labels)
        self._results.append(result)
        self._landings.append(self._clock())
        self._kinds.append(result.hot)

    def stop(self) -> None:
        """Says that no step comes next."""
        self._landings.clear()
        self._kinds.clear()

    def close(self) -> dict[str, float | None]:
        """Returns the record of the window; the next one begins here."""
        results, self._results = self._results, []
        aucs = self._auc.take()
        measured = [auc for auc in aucs if auc is not None]
        return {
            "window_steps": len(results),
            "loss": float(np.mean([result.loss for result in results])),
            "train_auc": float(np.mean(measured)) if measured == aucs != [] else None,
            **{f"train_auc/{task}": aucs[i] for i, task in enumerate(self._tasks)},
            "samples_per_s": self._samples_per_s(len(results), len(results[0].labels)),
            **(self._hot_figures(results) if self._hot_batches else {}),
            **{
                f"capacity_used/{name}": max(result.used[name] for result in results)
                for name in results[0].used
            },
        }

    def _samples_per_s(self, steps: int, batch_size: int) -> float | None:
        """Returns samples/s over these steps, or MIN_TIMED_STEPS; None if too few."""
        steps = max(steps, MIN_TIMED_STEPS)
        self._landings = self._landings[-(steps + _UNDER_WAY + 1) :]
        self._kinds = self._kinds[-(steps + _UNDER_WAY + 1) :]
        timed = self._landings[:-_UNDER_WAY]
        if len(timed) <= MIN_TIMED_STEPS:
            return None
        return (len(timed) - 1) * batch_size / (timed[-1] - timed[0])

    def _hot_figures(self, results: Sequence[StepResult]) -> dict[str, float | None]:
        """Returns the share of all-hot batches, and the median ms of steps of either
        kind, None if too few were timed; after ``_samples_per_s``, which says which."""
        seconds = np.diff(self._landings[:-_UNDER_WAY])
        kinds = np.array(self._kinds[1:-_UNDER_WAY], bool)

        def median_ms(timed: np.ndarray) -> float | None:
            enough = len(timed) >= MIN_TIMED_STEPS
            return 1e3 * float(np.median(timed)) if enough else None

        return {
            "hot_batches": float(np.mean([result.hot for result in results])),
            "hot_step_ms": median_ms(seconds[kinds]),
            "mixed_step_ms": median_ms(seconds[~kinds]),
        }
