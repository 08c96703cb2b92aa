"""Sequences as models may take them: with a mask, or packed, without padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx


class Masked(NamedTuple):
    """The embeddings of a padded sequence, and which of its places hold an event.

    Attributes:
      values: ``[batch, longest, dim]``.
      valid: ``[batch, longest]`` bool.
    """

    values: jax.Array
    valid: jax.Array


class MaskedModel(nnx.Module):
    """A Flax module whose embeddings of sequences are ``Masked``; of an array, which
    has no mask, all places hold an event."""


def unmasked(
    embeddings: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, jax.Array]]:
    """Returns the embeddings as arrays, and of each sequence which places hold an
    event."""
    arrays, valid = dict(embeddings), {}
    for name, embedding in embeddings.items():
        if isinstance(embedding, Masked):
            arrays[name], valid[name] = embedding
        elif not isinstance(embedding, Packed) and embedding.ndim == 3:
            valid[name] = jnp.ones(embedding.shape[:2], dtype=bool)
    return arrays, valid


class PackedModel(nnx.Module):
    """A Flax module whose embeddings of sequences are ``Packed``. Exported programs
    call it with ``Masked`` ones: ``Packed.of`` takes both."""


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
    def of(cls, sequence: Packed | Masked | jax.Array) -> Packed:
        """Returns a packed sequence as it is; a padded one, ``[batch, longest, dim]``,
        without its padding. Without a mask all its places are events."""
        if isinstance(sequence, Packed):
            return sequence
        if isinstance(sequence, Masked):
            values, valid = sequence
            # Zeros for padding stay at the end.
            values = jnp.where(valid[..., None], values, 0).reshape(-1, values.shape[2])
            order = jnp.argsort(~valid.reshape(-1), stable=True)
            return cls(values[order], valid.sum(axis=1, dtype=jnp.int32)[None])
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
