"""Sums of table rows, bag by bag.

Two functions share one kernel. ``pooled_lookup`` takes what a requester has: a matrix
of ids with static bag lengths. ``sum_bags`` takes what an owner has after an exchange:
entries that lie bag after bag, each with its bag.

Row numbers outside the table, such as -1, are padding: they cost no row traffic and add
nothing. Sums are float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from embark_kernels._implementation import choose
from embark_kernels._xla import add_rows, beyond, sum_columns, take
from embark_kernels.config import LookupConfig
from embark_kernels.tuning import lookup_key, tuned


def pooled_lookup(
    table: jax.Array,
    ids: jax.Array,
    weights: jax.Array | None = None,
    *,
    hotness: Sequence[int] | None = None,
    pooling: Literal["sum", "mean"] = "sum",
    out_dtype: jax.typing.DTypeLike = jnp.float32,
    implementation: str | None = None,
    config: LookupConfig | None = None,
) -> jax.Array:
    """The sum or mean of the rows of each bag; differentiable in table and weights.

    The gradient by the table is as large as the table; to train a large table, use
    ``update_from_bags``.

    Args:
      table: ``[rows, width]`` float32 or bfloat16.
      ids: ``[batch, columns]`` int32, -1 where padded.
      weights: ``[batch, columns]`` float32 factors of the rows; a mean is then the
        weighted sum over the total weight.
      hotness: lengths of the consecutive bags in a line of ids; their sum is
        ``columns``. None means one bag per line.
      pooling: "sum" or "mean"; an empty bag, or one of total weight zero, has mean
        zero.
      out_dtype: float32 or bfloat16.
      implementation: "xla", "mosaic_gpu", or None: see ``choose``.
      config: block sizes of the kernel; None for the tuned ones, or else the heuristic.

    Returns:
      ``[batch, len(hotness), width]``; ``[batch, width]`` if ``hotness`` is None.

    Raises:
      ValueError: if shapes disagree, or pooling or implementation is not possible.
    """
    lengths = (ids.shape[1],) if hotness is None else tuple(map(int, hotness))
    if sum(lengths) != ids.shape[1] or min(lengths, default=0) < 1:
        raise ValueError(f"hotness {lengths} does not split {ids.shape[1]} columns")
    if weights is not None and weights.shape != ids.shape:
        raise ValueError(f"weights are {weights.shape}, ids are {ids.shape}")
    if pooling not in ("sum", "mean"):
        raise ValueError(f"pooling is {pooling!r}, must be 'sum' or 'mean'")
    implementation = choose(implementation, table.shape[1], table.dtype)
    if pooling == "mean":
        weights = _mean_weights(table.shape[0], ids, weights, lengths)
    static = lengths, out_dtype, implementation, config
    pooled = cast(jax.Array, _pooled_lookup(table, ids, weights, *static))
    return pooled[:, 0] if hotness is None else pooled


def sum_bags(
    table: jax.Array,
    rows: jax.Array,
    bag: jax.Array,
    bags: int,
    weights: jax.Array | None = None,
    *,
    implementation: str | None = None,
    config: LookupConfig | None = None,
) -> jax.Array:
    """The sums of the rows of consecutive bags, in several lines.

    Args:
      table: ``[rows, width]`` float32 or bfloat16.
      rows: ``[lines, entries]`` int32; out of range where padded.
      bag: ``[lines, entries]`` int32 bag of each entry, ascending along a line; at its
        end ``bags`` for entries in no bag.
      bags: static number of bags in a line.
      weights: ``[lines, entries]`` float32 factors of the rows.
      implementation: "xla", "mosaic_gpu", or None: see ``choose``.
      config: block sizes of the kernel; None for the tuned ones, or else the heuristic.

    Returns:
      ``[lines, bags, width]`` float32; zeros for an empty bag.

    Raises:
      ValueError: if the implementation is unknown or cannot handle the table.
    """
    lines, entries = rows.shape
    implementation = choose(implementation, table.shape[1], table.dtype)
    flat_weights = None if weights is None else weights.reshape(-1)
    if implementation == "mosaic_gpu":
        line = jnp.arange(lines, dtype=jnp.int32)[:, None] * entries
        offsets = jax.vmap(lambda each: bag_offsets(each, bags))(bag) + line
        operands = table, rows.reshape(-1), offsets, flat_weights
        return sum_stretches(*operands, jnp.float32, config)
    line = jnp.arange(lines, dtype=jnp.int32)[:, None] * bags
    target = jnp.where(bag < bags, line + bag, lines * bags).reshape(-1)
    sums = jnp.zeros((lines * bags, table.shape[1]), jnp.float32)
    operands = sums, table, rows.reshape(-1), target, flat_weights
    sums = add_rows(*operands, ascending=True)
    return sums.reshape(lines, bags, -1)


def bag_offsets(bag: jax.Array, bags: int) -> jax.Array:
    """``[bags + 1]`` offsets of bags, from the ascending ``[entries]`` bag of each
    entry; entries of bag ``bags`` and beyond are in no bag."""
    bag = jnp.minimum(bag, bags)
    position = jnp.arange(bag.shape[0], dtype=jnp.int32)
    is_first = jnp.concatenate([jnp.ones(1, bool), bag[1:] != bag[:-1]])[: bag.size]
    # All entries of a bag write the same value; an empty bag begins where the next
    # does.
    first = lax.cummax(jnp.where(is_first, position, 0))
    begins = jnp.full(bags + 1, bag.shape[0], jnp.int32)
    begins = begins.at[bag].set(first, indices_are_sorted=True)
    return lax.cummin(begins, reverse=True)


def sum_stretches(
    table: jax.Array,
    rows: jax.Array,
    offsets: jax.Array,
    weights: jax.Array | None,
    out_dtype: jax.typing.DTypeLike,
    config: LookupConfig | None,
) -> jax.Array:
    """The kernel on bags given by offsets.

    Args:
      table: ``[rows, width]``.
      rows: ``[entries]``.
      offsets: ``[lines, bags + 1]``, ascending along a line: bag ``b`` is the entries
        from ``offsets[line, b]`` to before ``offsets[line, b + 1]``; entries between
        lines are ignored.
      weights: ``[entries]`` or None.
      out_dtype: float32 or bfloat16.
      config: block sizes of the kernel; None for the tuned ones, or else the heuristic.

    Returns:
      ``[lines, bags, width]``.
    """
    lines, bags = offsets.shape[0], offsets.shape[1] - 1
    (num_rows, width), entries = table.shape, rows.shape[0]
    if lines * bags == 0 or entries == 0 or num_rows == 0:
        return jnp.zeros((lines, bags, width), out_dtype)
    # Imported here, so that plain XLA does not need Mosaic.
    from embark_kernels._lookup_kernel import sum_stretches_mosaic_gpu

    if config is None:
        key = lookup_key(width, table.dtype, entries, lines * bags)
        config = tuned(key, LookupConfig.heuristic(width, entries, lines * bags))
    operands = table, rows, offsets, weights
    return sum_stretches_mosaic_gpu(*operands, out_dtype, config)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5, 6))
def _pooled_lookup(
    table, ids, weights, lengths, out_dtype, implementation, config
) -> jax.Array:
    if implementation == "xla":
        return sum_columns(table, ids, weights, lengths).astype(out_dtype)
    batch, columns = ids.shape
    line = jnp.arange(batch, dtype=jnp.int32)[:, None] * columns
    starts = jnp.asarray((np.cumsum(lengths) - lengths)[None], jnp.int32)
    offsets = jnp.append(line + starts, jnp.int32(batch * columns))[None]
    flat_weights = None if weights is None else weights.reshape(-1)
    operands = table, ids.reshape(-1), offsets, flat_weights
    sums = sum_stretches(*operands, out_dtype, config)
    return sums.reshape(batch, len(lengths), -1)


def _pooled_forward(table, ids, weights, *static):
    saved = table, ids, weights
    return _pooled_lookup(*saved, *static), saved


def _pooled_backward(lengths, out_dtype, implementation, config, saved, gradient):
    table, ids, weights = saved
    bag = np.repeat(np.arange(len(lengths)), lengths)
    entries = gradient.astype(jnp.float32)[:, bag]
    by_weights = None
    if weights is not None:
        by_weights = (entries * take(table, ids)).sum(axis=2)
        entries = entries * weights[:, :, None]
    by_table = jnp.zeros(table.shape, jnp.float32)
    by_table = by_table.at[beyond(ids, table.shape[0])].add(entries, mode="drop")
    return by_table.astype(table.dtype), None, by_weights


_pooled_lookup.defvjp(_pooled_forward, _pooled_backward)


def _mean_weights(
    num_rows: int,
    ids: jax.Array,
    weights: jax.Array | None,
    lengths: tuple[int, ...],
) -> jax.Array:
    """``[batch, columns]`` weights that turn a sum into a mean."""
    present = ((ids >= 0) & (ids < num_rows)).astype(jnp.float32)
    present = present if weights is None else present * weights
    bag = np.repeat(np.arange(len(lengths)), lengths)
    total = jnp.zeros((ids.shape[0], len(lengths)), jnp.float32)
    total = total.at[:, bag].add(present)[:, bag]
    return jnp.where(total == 0, 0.0, present / jnp.where(total == 0, 1.0, total))
