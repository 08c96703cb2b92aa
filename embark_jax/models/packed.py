"""Sequences as models may take them: the events of a batch, without padding."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx


class PackedModel(nnx.Module):
    """A Flax module whose embeddings of sequences are ``Packed``. Other programs, such
    as exported ones, call it with padded ones: ``Packed.of`` takes both."""


class Packed(NamedTuple):
    """The embeddings of a sequence's events: of a device's first sample, of its second,
    and so on, then zeros up to the room that the plan has, then those of the next
    device. Nothing here moves anything between devices.

    Attributes:
      values: ``[total, dim]``; zeros for padding that lies between events, too.
      lengths: ``[devices, samples of a device]`` int32, numbers of events.
    """

    values: jax.Array
    lengths: jax.Array

    @classmethod
    def of(cls, sequence: Packed | jax.Array) -> Packed:
        """Returns a packed sequence as it is; of a padded one, ``[batch, longest,
        dim]``, all places are events."""
        if isinstance(sequence, Packed):
            return sequence
        batch, longest, dim = sequence.shape
        return cls(
            sequence.reshape(-1, dim), jnp.full((1, batch), longest, dtype=jnp.int32)
        )

    @property
    def sample(self) -> jax.Array:
        """``[devices, events of a device]`` int32: which of a device's samples an event
        is of; behind the last event it is their number."""
        events = jnp.arange(len(self.values) // len(self.lengths), dtype=jnp.int32)
        ends = jnp.cumsum(self.lengths, axis=1, dtype=jnp.int32)
        return jax.vmap(lambda ends: jnp.searchsorted(ends, events, side="right"))(ends)

    def spread(self, of_samples: jax.Array) -> jax.Array:
        """Returns ``[total, …]``: of each event what ``[batch, …]`` has of its sample,
        and zeros behind the last."""

        def of_device(values, sample):
            return values.at[sample].get(mode="fill", fill_value=0)

        by_device = of_samples.reshape(*self.lengths.shape, *of_samples.shape[1:])
        spread = jax.vmap(of_device)(by_device, self.sample)
        return spread.reshape(len(self.values), *of_samples.shape[1:])

    def sum(self, of_events: jax.Array) -> jax.Array:
        """Returns ``[batch, …]``: of each sample the sum over its events of ``[total,
        …]``."""
        devices, samples = self.lengths.shape

        def of_device(values, sample):
            return jax.ops.segment_sum(values, sample, samples, indices_are_sorted=True)

        by_device = of_events.reshape(devices, -1, *of_events.shape[1:])
        total = jax.vmap(of_device)(by_device, self.sample)
        return total.reshape(devices * samples, *of_events.shape[1:])
