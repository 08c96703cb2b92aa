"""Scores batches, several in flight, and again where a buffer was too small."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import jax

from embark_jax.data import Batch, BatchChecker
from embark_jax.metrics.pointwise import EvalAccumulator, Metrics
from embark_jax.train.engine import Engine
from embark_jax.train.outcome import StepReport, refuse_bad_ids
from embark_jax.train.placing import PlacedBatch, Placing
from embark_jax.train.step_model import CALL


def score_batches(
    engine: Engine,
    placing: Placing,
    batches: Iterable[PlacedBatch],
    check: BatchChecker,
    in_flight: int,
    method: str = CALL,
) -> Iterator[tuple[Batch, jax.Array]]:
    """Yields each batch and its logits, also those of the padding on the devices.

    Args:
      engine: engine with the state.
      placing: places batches again that there is more room for.
      batches: checked batches, as ``placing`` puts them to score.
      check: checker that knows the features and their tables.
      in_flight: number of batches started before the oldest is waited for.
      method: method of the model.

    Raises:
      BadIdError: if ids that are no row of their table reached the devices.
    """
    flying: deque[tuple[PlacedBatch, StepReport]] = deque()

    def start(placed: PlacedBatch) -> tuple[PlacedBatch, StepReport]:
        placed = placing.again(placed, placing.put_to_score)
        return placed, engine.score(placed, method)

    def land() -> tuple[Batch, jax.Array]:
        placed, report = flying.popleft()
        while not (outcome := engine.outcome(report)).applied:
            if outcome.any_bad:
                refuse_bad_ids(placed.batch, report.bad_ids, check)
            engine.make_room(outcome.needed)
            placed, report = start(placed)
        return placed.batch, report.logits

    for placed in batches:
        flying.append(start(placed))
        if len(flying) > in_flight:
            yield land()
    while flying:
        yield land()


def metrics_of(scored: Iterable[tuple[Batch, jax.Array]]) -> Metrics:
    """Returns metrics over the samples of all batches, from what ``score_batches``
    yields."""
    scores = EvalAccumulator()
    for batch, logits in scored:
        scores.add(batch.labels, logits, len(batch), batch.sample_weights)
    return scores.result()
