"""Packed samples: the events of all of them, one after the other, without padding.

A *padded* sequence has as many places as the longest may have; its events lie from some
place on. *Packed*, the events of all samples lie behind each other, in an array that
has room for more.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from embark_kernels.attention import move_rows, places_of_events


def pack(
    padded: jax.Array,
    events: int,
    begin: jax.Array,
    length: jax.Array,
    first: jax.Array,
    fill: float = 0,
) -> jax.Array:
    """Packs ``[samples, longest, …]`` into ``[events, …]``.

    Args:
      padded: ``[samples, longest, …]``.
      events: number of events that there is room for; others are left out.
      begin: ``[samples]`` int32 place of the first event of each sample.
      length: ``[samples]`` int32 places from there to the last event.
      first: ``[samples]`` int32 index of that event among the packed ones, ascending.
      fill: what is where there is no event.
    """
    sample, place = places_of_events(first, length, events)
    place = place + begin.at[sample].get(mode="clip")
    with jax.enable_x64(padded.dtype.itemsize == 8):
        return padded.at[sample, place].get(
            mode="fill", fill_value=fill, wrap_negative_indices=False
        )


def unpack(
    packed: jax.Array,
    longest: int,
    begin: jax.Array,
    length: jax.Array,
    first: jax.Array,
    fill: int = -1,
) -> jax.Array:
    """Inverts ``pack``: where there is no event, integers are ``fill``, and floats 0;
    arguments as there."""
    events, samples = len(packed), len(begin)
    place = jnp.arange(longest, dtype=jnp.int32)[None] - begin[:, None]
    inside = (place >= 0) & (place < length[:, None])
    source = jnp.where(inside, first[:, None] + place, events)
    if jnp.issubdtype(packed.dtype, jnp.integer):
        with jax.enable_x64(packed.dtype.itemsize == 8):
            return packed.at[source].get(mode="fill", fill_value=fill)
    sample, place = places_of_events(first, length, events)
    inside = (sample < samples) & (place >= 0)
    place = place + begin.at[sample].get(mode="clip")
    target = jnp.where(inside, sample * longest + place, -1)
    padded = move_rows(packed, source.reshape(-1), target)
    return padded.reshape(*source.shape, *packed.shape[1:])
