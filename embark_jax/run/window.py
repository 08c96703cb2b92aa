"""The figures of the steps since the last record: loss, AUC, throughput, fill."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from embark_jax.metrics.pointwise import auc
from embark_jax.train.in_flight import STEPS_IN_FLIGHT
from embark_jax.train.outcome import StepResult

MIN_TIMED_STEPS = 10
"""Fewer steps give no throughput: the time of one of them varies."""
MOST_SAMPLES = 2**16
"""Samples of the last steps whose AUC is taken, on the host: more would hold up a fast
device, which is two steps ahead."""
_UNDER_WAY = STEPS_IN_FLIGHT + 1
"""Steps that may land together when no further batch comes: those in flight, and one
whose route was made ahead (``train.overlap``)."""


class _Step(NamedTuple):
    """What a record needs of each of its steps; see ``StepResult``."""

    loss: float
    hot: bool
    used: Mapping[str, float]


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
        self._steps: list[_Step] = []
        self._batch_size = 0
        self._scored: deque[StepResult] = deque()  # the last MOST_SAMPLES samples
        self._landings: list[float] = []  # since the last stop, as far as needed
        self._kinds: list[bool] = []  # of the steps that landed then: whether all-hot

    @property
    def empty(self) -> bool:
        return not self._steps

    def add(self, result: StepResult) -> None:
        """Takes a step that has just landed."""
        self._steps.append(_Step(result.loss, result.hot, result.used))
        self._batch_size = len(result.labels)
        self._scored.append(result)
        while self._batch_size * (len(self._scored) - 1) >= MOST_SAMPLES:
            self._scored.popleft()
        self._landings.append(self._clock())
        self._kinds.append(result.hot)

    def stop(self) -> None:
        """Says that no step comes next."""
        self._landings.clear()
        self._kinds.clear()

    def close(self) -> dict[str, float | None]:
        """Returns the record of the window; the next one begins here."""
        steps, self._steps = self._steps, []
        aucs = self._aucs()
        measured = [auc for auc in aucs if auc is not None]
        return {
            "window_steps": len(steps),
            "loss": float(np.mean([step.loss for step in steps])),
            "train_auc": float(np.mean(measured)) if measured == aucs != [] else None,
            **{f"train_auc/{task}": aucs[i] for i, task in enumerate(self._tasks)},
            "samples_per_s": self._samples_per_s(len(steps)),
            **(self._hot_figures(steps) if self._hot_batches else {}),
            **{
                f"capacity_used/{name}": max(step.used[name] for step in steps)
                for name in steps[0].used
            },
        }

    def _aucs(self) -> list[float | None]:
        """Returns the AUC of each label over the last MOST_SAMPLES samples since the
        last record, weighted like their losses; in a run of several processes over
        those of this process alone."""
        results = list(self._scored)
        self._scored.clear()

        def joined(arrays: Iterable[jax.Array]) -> np.ndarray:
            whole = np.concatenate([_of_this_process(array) for array in arrays])
            return whole[-MOST_SAMPLES:]

        labels, logits = (
            joined(arrays).reshape(-1, max(1, len(self._tasks)))
            for arrays in ([r.labels for r in results], [r.logits for r in results])
        )
        given = [r.weights for r in results if r.weights is not None]
        weights = joined(given) if given else None
        if not np.isfinite(logits).all():  # which a loss of one's own may allow
            return [None] * labels.shape[1]
        pairs = zip(labels.T, logits.T, strict=True)
        return [auc(*pair, weights) for pair in pairs]

    def _samples_per_s(self, steps: int) -> float | None:
        """Returns samples/s over these steps, or MIN_TIMED_STEPS; None if too few."""
        steps = max(steps, MIN_TIMED_STEPS)
        self._landings = self._landings[-(steps + _UNDER_WAY + 1) :]
        self._kinds = self._kinds[-(steps + _UNDER_WAY + 1) :]
        timed = self._landings[:-_UNDER_WAY]
        if len(timed) <= MIN_TIMED_STEPS:
            return None
        return (len(timed) - 1) * self._batch_size / (timed[-1] - timed[0])

    def _hot_figures(self, steps: Sequence[_Step]) -> dict[str, float | None]:
        """Returns the share of all-hot batches, and the median ms of steps of either
        kind, None if too few were timed; after ``_samples_per_s``, which says which."""
        seconds = np.diff(self._landings[:-_UNDER_WAY])
        kinds = np.array(self._kinds[1:-_UNDER_WAY], bool)

        def median_ms(timed: np.ndarray) -> float | None:
            enough = len(timed) >= MIN_TIMED_STEPS
            return 1e3 * float(np.median(timed)) if enough else None

        return {
            "hot_batches": float(np.mean([step.hot for step in steps])),
            "hot_step_ms": median_ms(seconds[kinds]),
            "mixed_step_ms": median_ms(seconds[~kinds]),
        }


def _of_this_process(array: jax.Array) -> np.ndarray:
    """Returns the samples of an array that lie on devices of this process."""
    shards = [np.asarray(shard.data) for shard in array.addressable_shards]
    return np.concatenate(shards)
