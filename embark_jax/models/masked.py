"""Sequences as models that read histories take them: with a mask."""

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
        elif embedding.ndim == 3:
            valid[name] = jnp.ones(embedding.shape[:2], dtype=bool)
    return arrays, valid
