"""Sequences without padding: the events of a device's samples, one after the other.

From the host to the model, and back to the rows, sequences are *packed*: the events of
all samples of a device lie behind each other, in an array that has room for as many as
the plan says. A *padded* sequence has as many places as the longest may have; its
events lie from the first that is one to the last. If 4 places hold ``[-1, 7, 8, -1]``
and ``[5, -1, -1, -1]``, the events are ``[7, 8, 5, …]``, and the spans begin at 1 and
0, have lengths 2 and 1, and their first events are the packed ones 0 and 2.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Spans(NamedTuple):
    """The places of events in padded sequences, and among the packed ones.

    Attributes:
      begin: ``[batch]`` int32 place of the first event of each sample.
      length: ``[batch]`` int32 places from there to the last event.
      first: ``[batch]`` int32 index of each sample's first event among those of its
        device.
    """

    begin: jax.Array
    length: jax.Array
    first: jax.Array

    @classmethod
    def of(cls, begin: jax.Array, length: jax.Array, devices: int = 1) -> Spans:
        """Returns spans of the samples of so many devices, one after the other."""
        by_device = length.reshape(devices, -1)
        first = jnp.cumsum(by_device, axis=1, dtype=jnp.int32) - by_device
        return cls(begin, length, first.reshape(-1))


def events_needed(length: jax.Array, cuts: int, longest: int) -> jax.Array:
    """Returns the ``[]`` int32 events that a device must have room for, so that all of
    them, and those of each cut, find room there; see ``plans.capacities``."""
    needed = length.sum(dtype=jnp.int32)
    if cuts == 1:
        return needed
    fullest = length.reshape(cuts, -1).sum(axis=1, dtype=jnp.int32).max()
    return jnp.maximum(needed, (fullest - longest) * cuts)
