"""Steps that are started before the result of the oldest is looked at.

The host stays ahead of the devices. A refused step and those behind it, which then did
nothing, are started again before any other.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from embark_jax.cache.row_store import StoreError
from embark_jax.data import BatchChecker
from embark_jax.train.engine import Engine
from embark_jax.train.outcome import (
    BadIdError,
    NonFiniteLossError,
    Outcome,
    StepReport,
    StepResult,
    refuse_bad_ids,
    refuse_non_finite,
)
from embark_jax.train.placing import PlacedBatch, Placing

STEPS_IN_FLIGHT = 2
"""Steps behind the one that is looked at."""


class Flight(NamedTuple):
    """A step that was started."""

    placed: PlacedBatch
    report: StepReport


class StepsInFlight:
    """The batches on their way through an engine.

    Args:
      engine: engine that applies them.
      placing: places batches that were refused.
      check: checker that knows the features and their tables.
    """

    def __init__(self, engine: Engine, placing: Placing, check: BatchChecker):
        self._engine = engine
        self._placing = placing
        self._check = check
        self._waiting: deque[PlacedBatch] = deque()
        self._flying: deque[Flight] = deque()

    def apply(self, batches: Iterable[PlacedBatch]) -> Iterator[StepResult]:
        """Applies batches in order, and yields each step once it is certain. When this
        ends, early or not, all batches taken have been applied, unless an error says
        that they cannot be."""
        waiting, flying = self._waiting, self._flying
        kept_back = 1 if self._engine.look_ahead else 0
        try:
            for batch in batches:
                waiting.append(batch)
                if len(waiting) > kept_back:
                    self._start()
                if len(flying) > STEPS_IN_FLIGHT:
                    yield self._land()
            while waiting:
                self._start()
            while flying:
                yield self._land()
        except (NonFiniteLossError, BadIdError, StoreError):
            waiting.clear()
            raise
        finally:
            while waiting:
                self._start()
            while flying:
                self._land()

    def _start(self) -> None:
        """Starts the step of the first batch that waits."""
        waiting, placing = self._waiting, self._placing
        placed = placing.again(waiting.popleft(), placing.put)
        if waiting:
            waiting[0] = placing.again(waiting[0], placing.put)
        following = waiting[0] if waiting else None
        try:
            report = self._engine.start(
                placed.on_devices,
                following.on_devices if following else None,
            )
        except BaseException:  # the next would fail as well, or find no state
            waiting.clear()
            raise
        self._flying.append(Flight(placed, report))

    def _land(self) -> StepResult:
        """Waits for the first step; while it is refused, starts it again."""
        engine = self._engine
        while not (outcome := engine.outcome(self._flying[0].report)).applied:
            self._replay(outcome)
        placed, report = self._flying.popleft()
        return engine.land(placed.on_devices, report, outcome)

    def _replay(self, outcome: Outcome) -> None:
        """Makes room for the first step, and starts all that are in flight again.

        Raises:
          BadIdError, NonFiniteLossError: if more room would not help.
        """
        engine, refused = self._engine, list(self._flying)
        self._flying.clear()
        engine.resume()
        first = refused[0].placed.batch
        if outcome.any_bad:
            refuse_bad_ids(first, refused[0].report.bad_ids, self._check)
        if not outcome.overflow:
            refuse_non_finite(first, outcome.loss, engine.step + 1)
        engine.make_room(outcome.needed)
        batches = [flight.placed.batch for flight in refused]
        # A batch announced as hot that is not takes the ordinary step.
        batches[0] = dataclasses.replace(first, hot=False)
        again = [self._placing.put(batch) for batch in batches]
        self._waiting.extendleft(reversed(again))
        for _ in again:
            self._start()
