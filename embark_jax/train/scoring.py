"""Scores batches, several in flight, and again where a buffer was too small."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

import jax

from embark_jax.data import Batch, BatchChecker
from embark_jax.metrics.pointwise import EvalAccumulator, Metrics
from embark_jax.train.device_batch import PlacedBatch
from embark_jax.train.report import Flight
from embark_jax.train.results import refuse_bad_ids


def score_all(
    batches: Iterable[PlacedBatch],
    start: Callable[[PlacedBatch], Flight],
    make_room: Callable[[Mapping[str, int]], None],
    check: BatchChecker,
    in_flight: int,
) -> Iterator[tuple[Batch, jax.Array]]:
    """Yields each batch and its logits, also those of the padding on the devices.

    Args:
      batches: checked batches.
      start: dispatches the scoring of a batch, and waits for nothing.
      make_room: grows the capacities to what a batch needs.
      check: checker that knows the features and their tables.
      in_flight: number of batches dispatched before the oldest is waited for.

    Raises:
      BadIdError: if ids that are no row of their table reached the devices.
    """
    flying: deque[tuple[PlacedBatch, Flight]] = deque()

    def land() -> tuple[Batch, jax.Array]:
        placed, flight = flying.popleft()
        while not (numbers := flight.numbers()).applied:
            if numbers.any_bad:
                refuse_bad_ids(flight.batch, flight.report.bad_ids, check)
            make_room(numbers.needed)
            flight = start(placed)
        return flight.batch, flight.report.logits

    for placed in batches:
        flying.append((placed, start(placed)))
        if len(flying) > in_flight:
            yield land()
    while flying:
        yield land()


def evaluate_scored(scored: Iterable[tuple[Batch, jax.Array]]) -> Metrics:
    """Returns metrics over the samples of all batches; logits as ``score_all`` gives
    them."""
    scores = EvalAccumulator()
    for batch, logits in scored:
        scores.add(batch.labels, logits, len(batch), batch.sample_weights)
    return scores.result()
