"""The figures of the steps since the last record: loss, AUC, throughput, fill."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
import sklearn.metrics  # noqa: F401, else the first AUC of a run waits for it

from embark_jax.metrics.pointwise import auc, labelled
from embark_jax.train.results import StepResult
from embark_jax.train.trainer import STEPS_IN_FLIGHT

MIN_TIMED_STEPS = 10
"""Fewer steps give no throughput: the time of one of them varies."""
MOST_SAMPLES = 2**16
"""Samples of the last steps whose AUC is taken, on the host: more would hold up a fast
device, which is two steps ahead."""
_UNDER_WAY = STEPS_IN_FLIGHT + 1
"""Steps that may end together when no further batch comes: those in flight, and one
whose route was made ahead."""


class _Step(NamedTuple):
    """What a record needs of each of its steps; see ``StepResult``."""

    loss: float
    hot: bool
    used: Mapping[str, float]


class Figures:
    """The steps since the last record.

    Throughput is measured from the end of one step to that of another. The first after
    a stop waited for a compilation or an evaluation, and the last few before one end
    together, without a batch having been made between them; so the measure begins at
    the first, and leaves out the last. Where there are few steps, it goes back to steps
    before the last record.

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
        self._closed = clock()
        # When steps were finished since the last stop, and whether they were all-hot.
        self._landings: list[tuple[float, bool]] = []

    @property
    def empty(self) -> bool:
        return not self._steps

    def add(self, result: StepResult) -> None:
        """Takes a step that was just finished."""
        self._steps.append(_Step(result.loss, result.hot, result.used))
        self._batch_size = len(result.labels)
        self._scored.append(result)
        while self._batch_size * (len(self._scored) - 1) >= MOST_SAMPLES:
            self._scored.popleft()
        self._landings.append((self._clock(), result.hot))

    def stop(self) -> None:
        """Says that no step comes next."""
        self._landings.clear()

    def close(self) -> dict[str, float | None]:
        """Returns the record of the steps; the next ones begin here."""
        steps, self._steps = self._steps, []
        before, self._closed = self._closed, self._clock()
        aucs = self._aucs()
        measured = [auc for auc in aucs if auc is not None]
        return {
            "window_steps": len(steps),
            "window_seconds": self._closed - before,
            "loss": float(np.mean([step.loss for step in steps])),
            "train_auc": float(np.mean(measured)) if measured == aucs != [] else None,
            **{f"train_auc/{task}": aucs[i] for i, task in enumerate(self._tasks)},
            **self._times(steps),
            **{
                # TensorBoard has no blanks in names.
                f"capacity_used/{name}".replace(" ", "_"): max(
                    step.used[name] for step in steps
                )
                for name in steps[0].used
            },
        }

    def _aucs(self) -> list[float | None]:
        """Returns the AUC of each label over the last MOST_SAMPLES samples since the
        last record, weighted like their losses; in a run of several processes over
        those of this process alone."""
        results = list(self._scored)
        self._scored.clear()

        def joined(arrays: Sequence[jax.Array]) -> np.ndarray:
            shards = [s.data for array in arrays for s in array.addressable_shards]
            return np.concatenate([*map(np.asarray, shards)])[-MOST_SAMPLES:]

        given = [r.weights for r in results if r.weights is not None]
        weights = joined(given) if given else None
        tasks = max(1, len(self._tasks))
        labels = joined([r.labels for r in results]).reshape(-1, tasks)
        logits = joined([r.logits for r in results]).reshape(-1, tasks)
        if not np.isfinite(logits).all():  # which a loss of one's own may allow
            return [None] * tasks
        pairs = zip(labels.T, logits.T, strict=True)
        return [auc(*labelled(*pair, weights)) for pair in pairs]

    def _times(self, steps: Sequence[_Step]) -> dict[str, float | None]:
        """Returns samples/s over these steps, or MIN_TIMED_STEPS; with ``hot_batches``
        the share of all-hot batches, too, and the median ms of steps of either kind.
        They are None where too few steps were timed."""
        most = max(len(steps), MIN_TIMED_STEPS) + _UNDER_WAY + 1
        self._landings = self._landings[-most:]
        times, hot = np.array(self._landings[:-_UNDER_WAY]).reshape(-1, 2).T
        seconds, hot = np.diff(times), hot[1:].astype(bool)

        def median_ms(timed: np.ndarray) -> float | None:
            enough = len(timed) >= MIN_TIMED_STEPS
            return 1e3 * float(np.median(timed)) if enough else None

        enough = len(seconds) >= MIN_TIMED_STEPS
        speed = len(seconds) * self._batch_size / seconds.sum() if enough else None
        record: dict[str, float | None] = {"samples_per_s": speed and float(speed)}
        if self._hot_batches:
            record |= {
                "hot_batches": float(np.mean([step.hot for step in steps])),
                "hot_step_ms": median_ms(seconds[hot]),
                "mixed_step_ms": median_ms(seconds[~hot]),
            }
        return record
