"""Scores batches, several in flight, and again where a buffer was too small."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

import jax

from embark_jax.data import Batch, BatchChecker
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.train.device_batch import DeviceBatch, PlacedBatch, own_part, put_batch
from embark_jax.train.numbering import Numbering
from embark_jax.train.report import Flight
from embark_jax.train.results import refuse_bad_ids


def placing_part(
    check: BatchChecker,
    numbering: Numbering,
    embeddings: EmbeddingCollection,
) -> Callable[[Batch], PlacedBatch]:
    """Returns a function that checks a batch and brings this process's part of it to
    the devices, with its keys numbered."""
    size, mesh = embeddings.plan.batch_size, embeddings.mesh
    room = {table.name: table.rows for table in embeddings.plan.tables}

    def place(batch: Batch) -> PlacedBatch:
        batch = check(batch)
        part = own_part(numbering.find(batch, room), size)
        return PlacedBatch(batch, put_batch(part, mesh, size), {})

    return place


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
    flying: deque[tuple[DeviceBatch, Flight]] = deque()

    def land() -> tuple[Batch, jax.Array]:
        on_devices, flight = flying.popleft()
        while not (numbers := flight.numbers()).applied:
            if numbers.any_bad:
                refuse_bad_ids(flight.batch, flight.report.bad_ids, check)
            make_room(numbers.needed)
            flight = start(PlacedBatch(flight.batch, on_devices, {}))
        return flight.batch, flight.report.logits

    for placed in batches:
        flying.append((placed.on_devices, start(placed)))
        if len(flying) > in_flight:
            yield land()
    while flying:
        yield land()
