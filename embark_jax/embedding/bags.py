"""What the ids of bags say by themselves, before they go anywhere."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp


def in_table(ids: jax.Array, rows: int) -> jax.Array:
    """Whether each id is a row of a table of so many."""
    if rows > jnp.iinfo(ids.dtype).max:
        return ids >= 0
    return (ids >= 0) & (ids < rows)


def mean_factor(
    ids: Mapping[str, jax.Array], weights: Mapping[str, jax.Array], name: str
) -> jax.Array:
    """``[batch]`` one over the total weight of each bag; zero if that is zero."""
    present = (ids[name] >= 0).astype(jnp.float32)
    total = (present * weights[name] if name in weights else present).sum(axis=1)
    return jnp.where(total == 0, 0.0, 1.0 / jnp.where(total == 0, 1.0, total))
