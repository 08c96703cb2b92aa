"""Sorting, and numbering runs. A run is consecutive sorted entries with equal keys.

On CPU each sort packs key and position into one unsigned integer: a one-operand sort is
several times faster there than sorting pairs. A GPU sorts by digits, so keys there are
as narrow as possible, and positions come along.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from embark_kernels._implementation import choose

KEY_TYPES = (jnp.uint16, jnp.uint32, jnp.uint64)


def sort_positions(keys: jax.Array, num_keys: int) -> tuple[jax.Array, jax.Array]:
    """Sorts small integers stably.

    Args:
      keys: ``[n]`` integers in ``[0, num_keys)``; uint64 if they need it.
      num_keys: static bound of the keys.

    Returns:
      ``(sorted keys, order)``: ``[n]`` each, the keys in their own dtype, order int32
      such that ``keys[order]`` is sorted.

    Raises:
      ValueError: if key and position together need more than 64 bits.
    """
    position_bits = max(1, (keys.shape[0] - 1).bit_length())
    bits = position_bits + max(1, (num_keys - 1).bit_length())
    if bits > 64:
        raise ValueError(
            f"{keys.shape[0]} keys below {num_keys} need {bits} bits to sort, have 64"
        )

    def packed(keys):
        packed_type = jnp.uint64 if bits > 32 else jnp.uint32
        position = jnp.arange(keys.shape[0], dtype=packed_type)
        shift = jnp.asarray(position_bits, packed_type)
        mask = jnp.asarray((1 << position_bits) - 1, packed_type)
        packed = jnp.sort((keys.astype(packed_type) << shift) | position)
        return (packed >> shift).astype(keys.dtype), (packed & mask).astype(jnp.int32)

    def paired(keys):
        narrow = next(t for t in KEY_TYPES if num_keys <= jnp.iinfo(t).max)
        position = jnp.arange(keys.shape[0], dtype=jnp.int32)
        key, order = lax.sort((_as_type(keys, narrow), position), num_keys=1)
        return _as_type(key, keys.dtype), order

    with jax.enable_x64(bits > 32 or keys.dtype == jnp.uint64):
        return lax.platform_dependent(keys, cpu=packed, default=paired)


def _as_type(keys: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """Converts integers >= 0, without a copy between types of one size."""
    if keys.dtype.itemsize == jnp.dtype(dtype).itemsize:
        return lax.bitcast_convert_type(keys, dtype)
    return keys.astype(dtype)


def begins_run(keys: jax.Array) -> jax.Array:
    """Returns ``[n]`` bool: whether each of ``[n]`` sorted keys is the first of its
    run."""
    return jnp.concatenate([jnp.ones(1, bool), keys[1:] != keys[:-1]])[: keys.size]


def number_runs(
    is_first: jax.Array, capacity: int, *, implementation: str | None = None
) -> tuple[jax.Array, jax.Array]:
    """Numbers runs in their order, from 0.

    Args:
      is_first: ``[n]`` bool from ``begins_run``.
      capacity: static number of runs to hold.
      implementation: "xla", "mosaic_gpu", or None: see ``choose``.

    Returns:
      ``(number, first)``, int32: ``[n]`` number of each entry's run, and ``[capacity]``
      first entry of each run, anything where there is no run.
    """
    n = is_first.shape[0]
    if n and capacity and choose(implementation) == "mosaic_gpu":
        # Imported here, so that plain XLA does not need Mosaic.
        from embark_kernels._number_kernel import number_runs_mosaic_gpu

        return number_runs_mosaic_gpu(is_first, capacity)
    position = jnp.arange(n, dtype=jnp.int32)
    number = jnp.cumsum(is_first, dtype=jnp.int32) - 1
    first = jnp.full(capacity, n, jnp.int32)
    return number, first.at[number].min(position, mode="drop", indices_are_sorted=True)
