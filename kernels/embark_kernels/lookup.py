"""Sums of table rows, bag by bag.

Two functions share one kernel. ``pooled_lookup`` takes what a requester has: a matrix
of ids with static bag lengths. ``sum_bags`` takes what an owner has after an exchange:
rows that lie bag after bag, each with its bag.

Row numbers outside the table, such as -1, are padding: they cost no row traffic and add
nothing. Sums are float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from embark_kernels._implementation import choose
from embark_kernels._xla import add_rows, sum_columns
from embark_kernels.grouping import begins_segment


def pooled_lookup(
    table: jax.Array,
    ids: jax.Array,
    weights: jax.Array | None = None,
    *,
    hotness: Sequence[int] | None = None,
    dtype: DTypeLike = jnp.float32,
    implementation: str | None = None,
) -> jax.Array:
    """Sums the rows of each bag.

    Args:
      table: ``[rows, width]`` float32 or bfloat16.
      ids: ``[batch, columns]`` int32, -1 where padded.
      weights: ``[batch, columns]`` float32 factors of the rows.
      hotness: lengths of the consecutive bags in a sample's ids; their sum is
        ``columns``, and some may be 0. None means one bag per sample.
      dtype: that of the result; sums are made in float32.
      implementation: "xla", "mosaic_gpu", or None: see ``choose``.

    Returns:
      ``[batch, len(hotness), width]``; ``[batch, width]`` if ``hotness`` is None. Zeros
      for an empty bag.

    Raises:
      ValueError: if shapes disagree, or the implementation is unknown or cannot handle
        the table.
    """
    lengths = (ids.shape[1],) if hotness is None else tuple(map(int, hotness))
    if sum(lengths) != ids.shape[1] or min(lengths, default=-1) < 0:
        raise ValueError(f"hotness {lengths} does not split {ids.shape[1]} columns")
    if weights is not None and weights.shape != ids.shape:
        raise ValueError(f"weights are {weights.shape}, ids are {ids.shape}")
    if choose(implementation, table.shape[1], table.dtype) == "xla":
        pooled = sum_columns(table, ids, weights, lengths).astype(dtype)
    else:
        batch, columns = ids.shape
        first = jnp.arange(batch, dtype=jnp.int32)[:, None] * columns
        starts = jnp.asarray((np.cumsum(lengths) - lengths)[None], jnp.int32)
        offsets = jnp.append(first + starts, jnp.int32(batch * columns))[None]
        flat_weights = None if weights is None else weights.reshape(-1)
        sums = sum_bags_between(table, ids.reshape(-1), offsets, flat_weights, dtype)
        pooled = sums.reshape(batch, len(lengths), -1)
    return pooled[:, 0] if hotness is None else pooled


def sum_bags(
    table: jax.Array,
    rows: jax.Array,
    bag: jax.Array,
    bags: int,
    weights: jax.Array | None = None,
    *,
    implementation: str | None = None,
) -> jax.Array:
    """Sums the rows of consecutive bags, which several senders ask for.

    Args:
      table: ``[rows, width]`` float32 or bfloat16.
      rows: ``[senders, capacity]`` int32; out of range where padded.
      bag: ``[senders, capacity]`` int32 bag of each row, ascending for each sender; at
        the end ``bags`` for rows in no bag.
      bags: static number of bags of a sender.
      weights: ``[senders, capacity]`` float32 factors of the rows.
      implementation: "xla", "mosaic_gpu", or None: see ``choose``.

    Returns:
      ``[senders, bags, width]`` float32; zeros for an empty bag.

    Raises:
      ValueError: if the implementation is unknown or cannot handle the table.
    """
    senders, capacity = rows.shape
    sender = jnp.arange(senders, dtype=jnp.int32)[:, None]
    implementation = choose(implementation, table.shape[1], table.dtype)
    flat_rows = rows.reshape(-1)
    flat_weights = None if weights is None else weights.reshape(-1)
    if implementation == "mosaic_gpu":
        offsets = jax.vmap(lambda bag: bag_offsets(bag, bags))(bag) + sender * capacity
        return sum_bags_between(table, flat_rows, offsets, flat_weights)
    target = jnp.where(bag < bags, sender * bags + bag, senders * bags).reshape(-1)
    sums = jnp.zeros((senders * bags, table.shape[1]), jnp.float32)
    sums = add_rows(sums, table, flat_rows, target, flat_weights, ascending=True)
    return sums.reshape(senders, bags, -1)


def bag_offsets(bag: jax.Array, bags: int) -> jax.Array:
    """Returns ``[bags + 1]`` offsets of bags, from the ascending ``[n]`` bag of each
    row; rows of bag ``bags`` and beyond are in no bag."""
    bag = jnp.minimum(bag, bags)
    position = jnp.arange(bag.shape[0], dtype=jnp.int32)
    # The first row of a bag says where it begins; an empty bag begins where the next
    # does.
    first_in = jnp.where(begins_segment(bag), bag, bags + 1)
    begins = jnp.full(bags + 1, bag.shape[0], jnp.int32)
    begins = begins.at[first_in].set(position, mode="drop")
    return lax.cummin(begins, reverse=True)


def sum_bags_between(
    table: jax.Array,
    rows: jax.Array,
    offsets: jax.Array,
    weights: jax.Array | None,
    dtype: DTypeLike = jnp.float32,
) -> jax.Array:
    """Sums bags between offsets, in the kernel.

    Args:
      table: ``[rows, width]``.
      rows: ``[n]``.
      offsets: ``[senders, bags + 1]``, ascending for each sender: bag ``b`` is the rows
        from ``offsets[sender, b]`` to before ``offsets[sender, b + 1]``; rows between
        senders are ignored.
      weights: ``[n]`` or None.
      dtype: that of the result; sums are made in float32.

    Returns:
      ``[senders, bags, width]``.
    """
    senders, bags = offsets.shape[0], offsets.shape[1] - 1
    width, n = table.shape[1], rows.shape[0]
    if senders * bags == 0 or n == 0 or table.shape[0] == 0:
        return jnp.zeros((senders, bags, width), dtype)
    # Imported here, so that plain XLA does not need Mosaic.
    from embark_kernels._lookup_kernel import sum_bags_mosaic_gpu

    return sum_bags_mosaic_gpu(table, rows, offsets, weights, dtype)
