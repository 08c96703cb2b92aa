"""Brings batches to the devices, while these work on earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from jax.sharding import Mesh

from embark_jax._base.memory import host_memory_bytes
from embark_jax.data import Batch, prefetch
from embark_jax.embedding.device_batch import DeviceBatch, own_samples, put_batch

S = TypeVar("S")
T = TypeVar("T")

MAX_AHEAD = 4
"""Batches on the host; more would only make a run end later when it is asked to."""
MEMORY_SHARE = 1 / 32
"""Share of the host's memory that batches may take; several processes may share a
host."""
PLACED_AHEAD = 1
"""Batches on the devices, which have no memory to spare."""


class PlacedBatch(NamedTuple):
    """A batch on the host, and its copy on the devices."""

    batch: Batch
    on_devices: DeviceBatch


class Placing:
    """The ways of a checked batch to the devices.

    Args:
      mesh: mesh of the devices.
      size: number of samples of a batch, over all devices.
      hot_steps: whether batches that are hot on the host are so on the devices.
      room: returns, for each sequence, the events of a device that the present plan has
        room for.
    """

    def __init__(
        self,
        mesh: Mesh,
        size: int,
        hot_steps: bool,
        room: Callable[[], Mapping[str, int]],
    ):
        self._mesh = mesh
        self._size = size
        self._hot_steps = hot_steps
        self._room = room

    def feed(
        self, make: Callable[[S], Batch], items: Iterable[S], batch_bytes: int
    ) -> Iterator[PlacedBatch]:
        """Yields ``put(make(item))`` for the items, in order.

        A thread makes batches ahead, another one places them. Items are taken, and
        exceptions raised, in the thread of the consumer.

        Args:
          make: makes the batch of an item.
          items: such as numbers of steps.
          batch_bytes: size of a batch on the host.
        """
        made = prefetch(make, items, _batches_ahead(batch_bytes))
        return prefetch(self.put, made, PLACED_AHEAD)

    def feed_to_score(
        self, batches: Iterable[Batch], batch_bytes: int
    ) -> Iterator[PlacedBatch]:
        """Yields ``put_to_score(batch)`` in order; a thread takes the batches, so
        many ahead as ``feed`` makes."""
        taken = _take_ahead(batches, _batches_ahead(batch_bytes))
        return prefetch(self.put_to_score, taken, PLACED_AHEAD)

    def put(self, batch: Batch) -> PlacedBatch:
        """Puts this process's share of a batch of training."""
        hot = batch.hot and self._hot_steps
        on_devices = put_batch(batch, self._mesh, self._size, hot, self._room())
        return PlacedBatch(batch, on_devices)

    def put_to_score(self, batch: Batch) -> PlacedBatch:
        """Puts this process's share of a whole batch that is scored."""
        share = own_samples(batch, self._size)
        on_devices = put_batch(share, self._mesh, self._size, False, self._room())
        return PlacedBatch(batch, on_devices)

    def again(
        self, placed: PlacedBatch, put: Callable[[Batch], PlacedBatch]
    ) -> PlacedBatch:
        """Returns a batch as ``put`` places it, which is as it was unless the plan has
        other room for events since then."""
        if placed.on_devices.has_room(self._room()):
            return placed
        return put(placed.batch)


def _batches_ahead(batch_bytes: int) -> int:
    """Returns how many batches of this size to make ahead of the one waited for."""
    fitting = int(host_memory_bytes() * MEMORY_SHARE / batch_bytes)
    return max(1, min(MAX_AHEAD, fitting))


def _take_ahead(batches: Iterable[T], depth: int) -> Iterator[T]:
    """Yields the batches in order; a thread takes them, up to ``depth`` ahead."""
    source, end = iter(batches), object()

    def forever() -> Iterator[None]:
        while True:
            yield None

    for batch in prefetch(lambda _: next(source, end), forever(), depth):
        if batch is end:
            return
        yield batch  # pyright: ignore[reportReturnType]
