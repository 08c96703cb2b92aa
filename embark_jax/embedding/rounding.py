"""Stochastic rounding of updated rows to 16 bits.

A value between two neighbours of the format becomes one of them, the nearer one more
often, so that its expectation is the value. Rounding to the nearest would lose every
update that is smaller than half the distance between neighbours
(https://arxiv.org/abs/2010.06192).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from embark_jax.embedding.hot_keys import HotKeys
from embark_jax.embedding.initial import ShardsByDevice, cell_of
from embark_jax.planner import Storage

FLOAT32_FRACTION_BITS, FLOAT32_BIAS = 23, 127


def round_stochastically(
    values: jax.Array, bits: jax.Array, dtype: jax.typing.DTypeLike
) -> jax.Array:
    """Rounds to a neighbour in ``dtype``; representable values stay as they are.

    The expectation is the value. Where neighbours are as close as they ever are, next
    to zero, it is within 2**-13 (float16) or 2**-16 (bfloat16) of their distance.

    Args:
      values: float32.
      bits: uint32 of the same shape, random and independent.
      dtype: bfloat16 or float16.
    """
    info = jnp.finfo(dtype)
    dropped = FLOAT32_FRACTION_BITS - info.nmant
    exponent = lax.bitcast_convert_type(values, jnp.int32) >> FLOAT32_FRACTION_BITS
    # The distance between neighbours, as an exponent with float32's bias.
    distance = (exponent & 0xFF) - info.nmant
    distance = jnp.maximum(
        distance, max(int(info.minexp) - info.nmant + FLOAT32_BIAS, 1)
    )
    distance = lax.bitcast_convert_type(distance << FLOAT32_FRACTION_BITS, jnp.float32)
    # As many random bits as are dropped: the sum is exact.
    share = (bits >> (32 - dropped)).astype(jnp.float32) * 2.0**-dropped
    return (jnp.floor(values / distance + share) * distance).astype(dtype)


def rounding_of(
    storage: Storage, hot_keys: HotKeys, step: jax.Array
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Returns a function that rounds rows, inside ``shard_map``. It takes the rows,
    ``[n, width]`` float32, and their slots in this device's block, ``[n]`` int32.

    The random bits depend on the table, row and column and on the step, never on plan
    or mesh, and not on the seed of the run: its rows and batches do.

    Args:
      storage: the storage.
      hot_keys: index of the plan's listed hot rows.
      step: ``[]`` int32 number of the step.
    """
    shards = ShardsByDevice(storage, hot_keys)
    key = jax.random.fold_in(jax.random.key(0, impl="threefry2x32"), step)

    def bits_of(row_low, row_high, column, seed):
        return jax.random.key_data(cell_of(key, row_low, row_high, column, seed))[0]

    by_column = jax.vmap(bits_of, in_axes=(None, None, 0, None))
    by_row = jax.vmap(by_column)

    def rounded(rows, slots):
        row_low, row_high, column, seed, _, _ = shards.locate(slots)
        columns = jnp.arange(storage.width, dtype=jnp.int32)
        columns = column[:, None] + columns[None]
        bits = by_row(row_low, row_high, columns, seed)
        return round_stochastically(rows, bits, storage.kind.dtype)

    return rounded
