"""Positions of rows, and rows at positions, on the device (``planner/dealing.py``)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from embark_jax.planner.dealing import DEALT_ROWS


def exchanged(rows: jax.Array, deals: jax.Array, deal: jax.Array | int) -> jax.Array:
    """The first rows change places, the rest keep theirs.

    Args:
      rows: int32 or int64, of any shape; negative ones are taken as 0.
      deals: ``[deals, DEALT_ROWS]`` int32 places of first rows, each way once.
      deal: which way those of each row go, of the same shape or one for all.

    Returns:
      Places, of the shape and type of ``rows``.
    """
    first = jnp.clip(rows, 0, DEALT_ROWS - 1).astype(jnp.int32)
    places = deals[deal, first].astype(rows.dtype)
    return jnp.where(rows < DEALT_ROWS, places, rows)
