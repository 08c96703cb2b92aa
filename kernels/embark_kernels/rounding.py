"""Stochastic rounding of updated rows to 16 bits.

A value between two neighbours of the format becomes one of them, the nearer one more
often, so that its expectation is the value. Rounding to the nearest would lose every
update that is smaller than half the distance between neighbours
(https://arxiv.org/abs/2010.06192).

Random bits come from a hash, so that a kernel makes them where it writes a row. A row's
*noise* is a random number of the row and the step.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

FLOAT32_FRACTION_BITS, FLOAT32_BIAS = 23, 127
BFLOAT16_BITS = 16
GOLDEN_RATIO = 0x9E3779B9
"""2**32 over the golden ratio: multiples of it are far from each other."""


def column_noise(column: jax.Array) -> jax.Array:
    """Returns uint32 numbers of columns, to add to a row's noise."""
    return column.astype(jnp.uint32) * jnp.uint32(GOLDEN_RATIO)


def random_bits(noise: jax.Array) -> jax.Array:
    """Returns 32 random bits of each noise, which is of a row and a column: the
    finalizer of MurmurHash3 (https://github.com/aappleby/smhasher)."""
    bits = (noise ^ (noise >> jnp.uint32(16))) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> jnp.uint32(13))) * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> jnp.uint32(16))


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
    if dtype == jnp.bfloat16:  # the upper half of a float32
        whole = lax.bitcast_convert_type(values, jnp.uint32)
        whole += bits >> jnp.uint32(BFLOAT16_BITS)
        whole &= jnp.uint32(0xFFFF0000)
        return lax.bitcast_convert_type(whole, jnp.float32).astype(dtype)
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
