"""Brings batches to the devices, with the keys of dynamic tables numbered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import jax
from jax.sharding import Mesh

from embark_jax.data import Batch, prefetch
from embark_jax.train.device_batch import PlacedBatch, own_part, put_batch
from embark_jax.train.feeding import feed
from embark_jax.train.numbering import Numbering

S = TypeVar("S")


class Placing:
    """The ways of a checked batch to the devices.

    Args:
      numbering: numbers of the keys of dynamic tables.
      mesh: mesh of the devices.
      training_size: number of samples of a step, over all devices.
      scoring_size: number of samples that are scored at once.
    """

    def __init__(
        self, numbering: Numbering, mesh: Mesh, training_size: int, scoring_size: int
    ):
        self._numbering, self._mesh = numbering, mesh
        self._training_size, self._scoring_size = training_size, scoring_size

    def feed(
        self, make: Callable[[S], Batch], items: Iterable[S], depth: int
    ) -> Iterator[PlacedBatch]:
        """Yields ``place(make(item))`` as ``feeding.feed`` does.

        Processes that number keys together must place the same batches, in the same
        order: no thread is ahead, which might be stopped here and not there.
        """
        if self._numbering.is_needed and jax.process_count() > 1:
            return map(self.place, prefetch(make, items, depth))
        return feed(make, items, self.place, depth)

    def place(self, batch: Batch) -> PlacedBatch:
        """Places this process's part of a batch of training; new keys get numbers."""
        numbered, keys = self._numbering.number(batch)
        on_devices = put_batch(numbered, self._mesh, self._training_size)
        return PlacedBatch(batch, on_devices, keys)

    def place_again(self, batch: Batch) -> PlacedBatch:
        """Places a batch of training that was placed before, and refused."""
        numbered, _ = self._numbering.find(batch)
        on_devices = put_batch(numbered, self._mesh, self._training_size)
        return PlacedBatch(batch, on_devices, {})

    def place_to_score(self, batch: Batch) -> PlacedBatch:
        """Places this process's part of a whole batch that is scored; new keys have
        numbers in it alone."""
        numbered, unseen = self._numbering.find(batch)
        part = own_part(numbered, self._scoring_size)
        on_devices = put_batch(part, self._mesh, self._scoring_size)
        used = {name: len(self._numbering.keys(name)) for name in unseen}
        keys = {name: used[name] + len(each) for name, each in unseen.items()}
        return PlacedBatch(batch, on_devices, keys, unseen)
