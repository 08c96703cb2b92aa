"""Sums of table rows, bag by bag.

Two forms, one kernel. ``sum_bags`` takes entries that lie bag after bag, with the
offsets where bags begin: what an owner has after an exchange, and the entries of a
batch sorted by row, whose gradients are summed. ``pooled_lookup`` takes a matrix of
ids with static bag lengths: what a requester has. The matrix is a case of offsets to
the kernel; plain XLA is several times faster when it knows the lengths, as it then
adds column by column and makes no ``[entries, width]`` array.

Rows outside the table, -1 among them, are padding: they cost no row traffic and add
nothing. Sums are float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, cast

import jax
import jax.numpy as jnp
import numpy as np

from embark_kernels._implementation import choose
from embark_kernels.config import LookupConfig

MAX_UNROLLED_COLUMNS = 32
"""Longer bags are summed in a loop, so that the program stays small."""


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
    """Sum or mean of the rows of each bag; differentiable in table and weights.

    The gradient by the table is as large as the table: to train a large one, use
    ``update_from_bags``.

    Args:
      table: ``[rows, width]`` float32 or bfloat16.
      ids: ``[batch, columns]`` int32, -1 where padded.
      weights: ``[batch, columns]`` float32 factors of the rows; a mean is then the
        weighted sum over the total weight.
      hotness: lengths of the bags that follow each other in a line of ids; their sum
        is ``columns``. None means one bag a line.
      pooling: an empty bag, or one of total weight zero, has mean zero.
      out_dtype: float32 or bfloat16.
      implementation: "xla", "mosaic_gpu", or None for the best that runs here.
      config: of the kernel; None for its heuristic.

    Returns:
      ``[batch, len(hotness), width]``; ``[batch, width]`` if ``hotness`` is None.

    Raises:
      ValueError: if shapes disagree, or pooling or implementation cannot be.
    """
    lengths = (ids.shape[1],) if hotness is None else tuple(hotness)
    if sum(lengths) != ids.shape[1] or min(lengths, default=0) < 1:
        raise ValueError(f"hotness {lengths} does not split {ids.shape[1]} columns")
    if weights is not None and weights.shape != ids.shape:
        raise ValueError(f"weights are {weights.shape}, ids are {ids.shape}")
    if pooling not in ("sum", "mean"):
        raise ValueError(f"pooling is {pooling!r}, must be 'sum' or 'mean'")
    implementation = choose(implementation, table)
    if pooling == "mean":
        weights = _mean_weights(table.shape[0], ids, weights, lengths)
    static = lengths, out_dtype, implementation, config
    pooled = cast(jax.Array, _pooled_lookup(table, ids, weights, *static))
    return pooled[:, 0] if hotness is None else pooled


def sum_bags(
    table: jax.Array,
    rows: jax.Array,
    offsets: jax.Array,
    weights: jax.Array | None = None,
    *,
    out_dtype: jax.typing.DTypeLike = jnp.float32,
    implementation: str | None = None,
    config: LookupConfig | None = None,
) -> jax.Array:
    """Sums of the rows of bags that lie one after the other.

    Args:
      table: ``[rows, width]`` float32 or bfloat16.
      rows: ``[entries]`` int32; out of range where padded.
      offsets: ``[bags + 1]`` int32, ascending: bag ``b`` is the entries from
        ``offsets[b]`` to before ``offsets[b + 1]``. Entries outside all bags are not
        looked at.
      weights: ``[entries]`` float32 factors of the rows.
      out_dtype: float32 or bfloat16.
      implementation: "xla", "mosaic_gpu", or None for the best that runs here.
      config: of the kernel; None for its heuristic.

    Returns:
      ``[bags, width]``; zeros for an empty bag.

    Raises:
      ValueError: if the implementation is unknown or cannot handle the table.
    """
    implementation = choose(implementation, table)
    static = out_dtype, implementation, config
    return cast(jax.Array, _sum_bags(table, rows, offsets, weights, *static))


def bag_offsets(bag: jax.Array, bags: int) -> jax.Array:
    """``[bags + 1]`` offsets of bags, from the ascending ``[entries]`` bag of each
    entry; entries of bag ``bags`` and beyond lie in none."""
    edges = jnp.arange(bags + 1, dtype=bag.dtype)
    return jnp.searchsorted(bag, edges).astype(jnp.int32)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def _sum_bags(
    table, rows, offsets, weights, out_dtype, implementation, config
) -> jax.Array:
    bags, entries, width = offsets.shape[0] - 1, rows.shape[0], table.shape[1]
    if bags == 0 or entries == 0 or table.shape[0] == 0:
        return jnp.zeros((bags, width), out_dtype)
    if implementation == "mosaic_gpu":
        # Imported here: what runs in plain XLA must not need Mosaic.
        from embark_kernels._lookup_kernel import sum_bags_mosaic_gpu

        config = config or LookupConfig.heuristic(width, entries, bags)
        return sum_bags_mosaic_gpu(table, rows, offsets, weights, out_dtype, config)
    values = _take(table, rows)
    if weights is not None:
        values = values * weights[:, None]
    bag = _bag_of_entries(offsets, entries)
    summed = jnp.zeros((bags, width), jnp.float32)
    summed = summed.at[bag].add(values, mode="drop", indices_are_sorted=True)
    return summed.astype(out_dtype)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5, 6))
def _pooled_lookup(
    table, ids, weights, lengths, out_dtype, implementation, config
) -> jax.Array:
    batch, columns = ids.shape
    starts = np.cumsum([0, *lengths])
    if implementation == "mosaic_gpu":
        offsets = _offsets(batch, columns, starts)
        flat_weights = None if weights is None else weights.reshape(-1)
        operands = table, ids.reshape(-1), offsets, flat_weights
        static = out_dtype, implementation, config
        flat = cast(jax.Array, _sum_bags(*operands, *static))
        return flat.reshape(batch, len(lengths), -1)

    def add_column(column, total):
        rows = _take(table, ids[:, column])
        return total + (rows if weights is None else rows * weights[:, column, None])

    def sum_columns(start, length):
        total = jnp.zeros((batch, table.shape[1]), jnp.float32)
        if length > MAX_UNROLLED_COLUMNS:
            return jax.lax.fori_loop(start, start + length, add_column, total)
        for column in range(start, start + length):
            total = add_column(column, total)
        return total

    bags = [sum_columns(int(s), n) for s, n in zip(starts, lengths, strict=False)]
    return jnp.stack(bags, axis=1).astype(out_dtype)


def _sum_bags_forward(table, rows, offsets, weights, *static):
    saved = table, rows, offsets, weights
    return _sum_bags(*saved, *static), saved


def _sum_bags_backward(out_dtype, implementation, config, saved, gradient):
    table, rows, offsets, weights = saved
    bag = _bag_of_entries(offsets, rows.shape[0])
    by_table, by_weights = _gradients(table, rows, bag, weights, gradient)
    return by_table, None, None, by_weights


def _pooled_forward(table, ids, weights, *static):
    saved = table, ids, weights
    return _pooled_lookup(*saved, *static), saved


def _pooled_backward(lengths, out_dtype, implementation, config, saved, gradient):
    table, ids, weights = saved
    batch, columns = ids.shape
    offsets = _offsets(batch, columns, np.cumsum([0, *lengths]))
    bag = _bag_of_entries(offsets, ids.size)
    flat_weights = None if weights is None else weights.reshape(-1)
    gradient = gradient.reshape(-1, gradient.shape[-1])
    by_table, by_weights = _gradients(
        table, ids.reshape(-1), bag, flat_weights, gradient
    )
    if by_weights is not None:
        by_weights = by_weights.reshape(ids.shape)
    return by_table, None, by_weights


_sum_bags.defvjp(_sum_bags_forward, _sum_bags_backward)
_pooled_lookup.defvjp(_pooled_forward, _pooled_backward)


def _gradients(table, rows, bag, weights, gradient):
    """By the table ``[rows, width]``, and by the weights ``[entries]`` or None."""
    entries = _take(gradient, bag)
    by_weights = None
    if weights is not None:
        by_weights = (entries * _take(table, rows)).sum(axis=1)
        entries = entries * weights[:, None]
    by_table = jnp.zeros(table.shape, jnp.float32)
    by_table = by_table.at[_beyond(rows, table.shape[0])].add(entries, mode="drop")
    return by_table.astype(table.dtype), by_weights


def _beyond(rows: jax.Array, size: int) -> jax.Array:
    """Negative indices moved beyond the end, where JAX drops or fills them."""
    return jnp.where(rows < 0, size, rows)


def _take(table: jax.Array, rows: jax.Array) -> jax.Array:
    """``[entries, width]`` float32 rows, zeros where out of range."""
    rows = _beyond(rows, table.shape[0])
    return table.at[rows].get(mode="fill", fill_value=0).astype(jnp.float32)


def _bag_of_entries(offsets: jax.Array, entries: int) -> jax.Array:
    """``[entries]`` bag of each entry; the number of bags where it lies in none."""
    place = jnp.arange(entries, dtype=jnp.int32)
    bag = jnp.searchsorted(offsets, place, side="right").astype(jnp.int32) - 1
    return jnp.where(bag < 0, offsets.shape[0] - 1, bag)


def _offsets(batch: int, columns: int, starts: np.ndarray) -> jax.Array:
    """Offsets of ``batch`` lines of ``columns`` ids, with bags at ``starts``."""
    line = jnp.arange(batch, dtype=jnp.int32)[:, None] * columns
    offsets = (line + jnp.asarray(starts[None, :-1], jnp.int32)).reshape(-1)
    return jnp.append(offsets, jnp.int32(batch * columns))


def _mean_weights(
    num_rows: int,
    ids: jax.Array,
    weights: jax.Array | None,
    lengths: tuple[int, ...],
) -> jax.Array:
    """``[batch, columns]`` weights that make a sum a mean."""
    present = ((ids >= 0) & (ids < num_rows)).astype(jnp.float32)
    present = present if weights is None else present * weights
    bag = np.repeat(np.arange(len(lengths)), lengths)
    total = jnp.zeros((ids.shape[0], len(lengths)), jnp.float32)
    total = total.at[:, bag].add(present)[:, bag]
    return jnp.where(total == 0, 0.0, present / jnp.where(total == 0, 1.0, total))
