"""Batches are made and copied to the devices while these work on earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from embark_jax._base.memory import host_memory_bytes
from embark_jax.data import prefetch

S = TypeVar("S")
T = TypeVar("T")
P = TypeVar("P")

MOST_AHEAD = 4
"""Batches on the host; more would only make a run end later when it is asked to."""
MEMORY_SHARE = 1 / 32
"""Share of the host's memory that batches may take; several processes may share a
host."""
PLACED_AHEAD = 1
"""Batches on the devices, which have no memory to spare."""


def batches_ahead(batch_bytes: int) -> int:
    """Returns how many batches of this size to make ahead of the one waited for."""
    fitting = int(host_memory_bytes() * MEMORY_SHARE / batch_bytes)
    return max(1, min(MOST_AHEAD, fitting))


def feed(
    make: Callable[[S], T], items: Iterable[S], place: Callable[[T], P], depth: int
) -> Iterator[P]:
    """Yields ``place(make(item))`` for the items, in order.

    A thread makes batches up to ``depth`` ahead, another one places them. Items are
    taken, and exceptions raised, in the thread of the consumer.
    """
    return prefetch(place, prefetch(make, items, depth), PLACED_AHEAD)


def read_ahead(
    batches: Iterable[T], place: Callable[[T], P], depth: int
) -> Iterator[P]:
    """Yields ``place(batch)`` in order; a thread takes the batches, up to ``depth``
    ahead."""
    source, end = iter(batches), object()

    def take(_: None) -> T | object:
        return next(source, end)

    def forever() -> Iterator[None]:
        while True:
            yield None

    def until_end(taken: Iterable[T | object]) -> Iterator[T]:
        for batch in taken:
            if batch is end:
                return
            yield batch  # pyright: ignore[reportReturnType]

    return prefetch(place, until_end(prefetch(take, forever(), depth)), PLACED_AHEAD)
