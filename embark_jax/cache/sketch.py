"""A count-min sketch counts in how many batches a key was asked for. Its counts are
halved from time to time (TinyLFU, https://arxiv.org/abs/1512.00727)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from embark_jax.embedding.keys import hash_words

SKETCH_SEEDS = (0x27D4EB2F, 0x165667B1)
SKETCH_CELLS = 2**20
"""Counts of a sketch for each of its hashes."""
SKETCH_LOAD = 4
"""Cells for each count between two halvings."""


def count_sights(
    sights: jax.Array, counted: jax.Array, keys: jax.Array, counts: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Counts keys.

    Args:
      sights: ``[cells, hashes]`` int32 counts of the sketch.
      counted: ``[1]`` int32 keys counted since the counts were halved.
      keys: ``[n, words]`` uint32 keys.
      counts: ``[n]`` bool: those that count.

    Returns:
      The sketch, the number of keys that it has counted, and ``[n]`` int32: how often
      each key was counted, or more.
    """
    cells = sights.shape[0]
    hashes = [hash_words(keys, seed) % np.uint32(cells) for seed in SKETCH_SEEDS]
    cell = jnp.stack(hashes, axis=1).astype(jnp.int32)
    column = jnp.arange(len(SKETCH_SEEDS), dtype=jnp.int32)[None]
    more = counts.astype(jnp.int32)
    sights = sights.at[cell, column].add(more[:, None])
    times_seen = sights[cell, column].min(axis=1)
    counted = counted + more.sum()
    halve = counted >= cells // SKETCH_LOAD
    sights = jnp.where(halve, sights // 2, sights)
    return sights, jnp.where(halve, 0, counted), times_seen
