"""Where rows lie, and which rows lie where, on the device (``planner/dealing.py``)."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from embark_jax.planner.dealing import DEALT_ROWS, ids_at, locate

Integers = jax.Array | np.ndarray | int


def find(
    ids: jax.Array,
    limits: Sequence[Integers],
    orders: jax.Array,
    whose: Integers,
) -> tuple[jax.Array, jax.Array]:
    """``(row shard, row in it)`` of rows, both int32 and shaped like ``ids``.

    Args:
      ids: int32 or int64; what becomes of negative ones is not defined.
      limits: ``Dealing.limits`` of the tables, broadcast against ``ids``.
      orders: ``[orders, DEALT_ROWS]`` int32 positions of first ids.
      whose: the order of each.
    """
    dealt = orders[whose, _first(ids)].astype(ids.dtype)
    limits = [jnp.asarray(limit, ids.dtype) for limit in limits]
    row_shard, row = locate(jnp, ids, limits, dealt)
    return row_shard.astype(jnp.int32), row.astype(jnp.int32)


def ids_of(
    row_shard: jax.Array,
    row: jax.Array,
    limits: Sequence[Integers],
    orders: jax.Array,
    whose: Integers,
) -> jax.Array:
    """The inverse of ``find``.

    Args:
      row_shard, row: in it; both int64.
      limits: as for ``find``, int64.
      orders: ``[orders, DEALT_ROWS]`` int32 first ids at their positions.
      whose: as for ``find``.
    """
    position = row * limits[0] + row_shard
    dealt = orders[whose, _first(position)].astype(row.dtype)
    return ids_at(jnp, row_shard, row, limits, dealt)


def _first(ids: jax.Array) -> jax.Array:
    return jnp.clip(ids, 0, DEALT_ROWS - 1).astype(jnp.int32)
