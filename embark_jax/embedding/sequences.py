"""Sequences without padding: the events of a device's samples, one after the other.

A *padded* sequence has as many places as the longest may have; its events lie from the
first that is one to the last. *Packed*, the events of all samples of a device lie
behind each other, in an array that has room for as many as the plan says. If 4 places
hold ``[-1, 7, 8, -1]`` and ``[5, -1, -1, -1]``, the events are ``[7, 8, 5, …]``, and
the spans begin at 1 and 0 and have lengths 2 and 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from embark_jax.plans.tables import PADDING_ID


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


def spans_of(present: jax.Array) -> Spans:
    """Returns the spans of ``[batch, longest]`` places, of which it is said whether
    each has an event."""
    longest = present.shape[1]
    begin = jnp.argmax(present, axis=1)
    end = longest - jnp.argmax(present[:, ::-1], axis=1)
    length = jnp.where(present.any(axis=1), end - begin, 0)
    return Spans(begin.astype(jnp.int32), length.astype(jnp.int32))


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


def unpack(packed: jax.Array, spans: Spans, longest: int, fill: float = 0) -> jax.Array:
    """Inverts ``pack``, with ``fill`` where there is no event."""
    with jax.enable_x64(packed.dtype.itemsize == 8):
        position = jnp.arange(longest, dtype=jnp.int32)[None] - spans.begin[:, None]
        inside = (position >= 0) & (position < spans.length[:, None])
        event = jnp.where(inside, spans.first[:, None] + position, len(packed))
        return packed.at[event].get(mode="fill", fill_value=fill)


Arrays = dict[str, jax.Array]


def pack_columns(
    events: Mapping[str, int],
    ids: Arrays,
    weights: Arrays,
    spans: dict[str, Spans],
) -> tuple[Arrays, Arrays, dict[str, Spans]]:
    """Returns the arguments of ``EmbeddingCollection.route``, on one device, in which
    sequences are ``[events, 1]``.

    Args:
      events: events of a device that there is room for, by sequence.
      ids, weights, spans: its arguments.
    """
    spans = dict(spans)
    columns = dict(ids), dict(weights)
    for name, room in events.items():
        is_packed = name in spans
        if not is_packed:
            with jax.enable_x64(ids[name].dtype == jnp.int64):
                spans[name] = spans_of(ids[name] != PADDING_ID)
        for of_kind, fill in zip(columns, (PADDING_ID, 0), strict=True):
            if name not in of_kind:
                continue
            if not is_packed:
                of_kind[name] = pack(of_kind[name], spans[name], room, fill)
            of_kind[name] = of_kind[name].reshape(-1, 1)
    return *columns, spans
