"""What the ids of bags say by themselves, before they go anywhere."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from embark_jax.tables import PADDING_ID


def mask_bad(ids: jax.Array, rows: int) -> tuple[jax.Array, jax.Array]:
    """The ids, with padding for those that are no row of a table of so many; and how
    many those are, ``[]`` int32. All of an id of 64 bits is looked at, in any mode."""
    with jax.enable_x64(ids.dtype == jnp.int64):
        valid = ids >= 0
        if rows <= jnp.iinfo(ids.dtype).max:
            valid &= ids < rows
        bad = (~valid & (ids != PADDING_ID)).sum(dtype=jnp.int32)
        return jnp.where(valid, ids, PADDING_ID), bad


def mean_factor(
    ids: Mapping[str, jax.Array], weights: Mapping[str, jax.Array], name: str
) -> jax.Array:
    """``[batch]`` one over the total weight of each bag; zero if that is zero."""
    present = (ids[name] >= 0).astype(jnp.float32)
    total = (present * weights[name] if name in weights else present).sum(axis=1)
    return jnp.where(total == 0, 0.0, 1.0 / jnp.where(total == 0, 1.0, total))
