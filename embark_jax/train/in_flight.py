"""Steps that are dispatched before the result of the oldest is looked at.

The host stays ahead of the devices. A refused step and those behind it, which then did
nothing, are dispatched again before any other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from embark_jax.cache.row_store import StoreError
from embark_jax.train.device_batch import PlacedBatch
from embark_jax.train.report import Flight, Numbers
from embark_jax.train.results import BadIdError, NonFiniteLossError, StepResult

STEPS_IN_FLIGHT = 2
"""Steps behind the one that is looked at."""


class StepsInFlight(NamedTuple):
    """The way in which a trainer applies batches.

    Attributes:
      dispatch: starts the step of a batch, given the next batch if that is known; waits
        for nothing.
      mend: takes refused steps, the first of which has these numbers, and gives the
        batches to dispatch again; or raises why that would not help.
      land: gives the result of a step that was applied.
      waiting: number of batches that are kept back, so that ``dispatch`` can be given
        them.
    """

    dispatch: Callable[[PlacedBatch, PlacedBatch | None], Flight]
    mend: Callable[[Sequence[Flight], Numbers], Iterable[PlacedBatch]]
    land: Callable[[Flight, Numbers], StepResult]
    waiting: int

    def apply(self, batches: Iterable[PlacedBatch]) -> Iterator[StepResult]:
        """Applies batches in order, and yields each step once it is certain. When this
        ends, early or not, all batches taken have been applied, unless an error says
        that they cannot be."""
        waiting: deque[PlacedBatch] = deque()
        flying: deque[Flight] = deque()
        try:
            for batch in batches:
                waiting.append(batch)
                if len(waiting) > self.waiting:
                    flying.append(self._start(waiting))
                if len(flying) > STEPS_IN_FLIGHT:
                    yield self._land(flying)
            while waiting:
                flying.append(self._start(waiting))
            while flying:
                yield self._land(flying)
        except (NonFiniteLossError, BadIdError, StoreError):
            waiting.clear()
            raise
        finally:
            while waiting:
                flying.append(self._start(waiting))
            while flying:
                self._land(flying)

    def _start(self, waiting: deque[PlacedBatch]) -> Flight:
        batch = waiting.popleft()
        try:
            return self.dispatch(batch, waiting[0] if waiting else None)
        except BaseException:  # the next would fail as well, or find no state
            waiting.clear()
            raise

    def _land(self, flying: deque[Flight]) -> StepResult:
        while not (numbers := flying[0].numbers()).applied:
            flights = list(flying)
            flying.clear()
            again = deque(self.mend(flights, numbers))
            while again:
                flying.append(self._start(again))
        return self.land(flying.popleft(), numbers)
