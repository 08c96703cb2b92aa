"""Sequences without padding: the events of a device's samples, one after the other.

From the host to the model, and back to the rows, sequences are *packed*: the events of
all samples of a device lie behind each other, in an array that has room for as many as
the plan says. A *padded* sequence has as many places as the longest may have; its
events lie from the first that is one to the last. If 4 places hold ``[-1, 7, 8, -1]``
and ``[5, -1, -1, -1]``, the events are ``[7, 8, 5, …]``, and the spans begin at 1 and 0
and have lengths 2 and 1.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Spans(NamedTuple):
    """The places of events in padded sequences.

    Attributes:
      begin: ``[batch]`` int32 place of the first event of each sample.
      length: ``[batch]`` int32 places from there to the last event.
    """

    begin: jax.Array
    length: jax.Array

    @property
    def first(self) -> jax.Array:
        """``[batch]`` index of each sample's first event among the packed ones."""
        return jnp.cumsum(self.length) - self.length


def pack(padded: jax.Array, spans: Spans, events: int, fill: float = 0) -> jax.Array:
    """Packs ``[batch, longest, ...]`` into ``[events, ...]``, with ``fill`` where there
    is no event; events beyond the room are left out."""
    with jax.enable_x64(padded.dtype.itemsize == 8):
        ends = jnp.zeros(events, jnp.int32)
        ends = ends.at[spans.first + spans.length].add(1, mode="drop")
        sample = jnp.cumsum(ends, dtype=jnp.int32)  # that have ended; the last is none
        shift = spans.begin - spans.first
        position = jnp.arange(events, dtype=jnp.int32) + shift.at[sample].get(
            mode="clip"
        )
        return padded.at[sample, position].get(mode="fill", fill_value=fill)


def places(spans: Spans, longest: int, events: int) -> jax.Array:
    """Returns ``[batch, longest]`` int32 index of each place's event among the packed
    ones, of which there are so many; that number where there is no event."""
    position = jnp.arange(longest, dtype=jnp.int32)[None] - spans.begin[:, None]
    inside = (position >= 0) & (position < spans.length[:, None])
    return jnp.where(inside, spans.first[:, None] + position, events)


def unpack(packed: jax.Array, spans: Spans, longest: int, fill: float = 0) -> jax.Array:
    """Inverts ``pack``, with ``fill`` where there is no event."""
    place = places(spans, longest, len(packed))
    with jax.enable_x64(packed.dtype.itemsize == 8):
        return packed.at[place].get(mode="fill", fill_value=fill)
