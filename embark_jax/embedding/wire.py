"""Rows on the wire: rounded just before they travel, float32 again on arrival.

Unsigned integers travel, so that no compiler pass widens rows or moves the rounding to
the other side of the exchange.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from embark_jax.plans.options import WireFormat
from embark_jax.plans.wire import SCALE_BYTES, VALUE_BYTES

_VALUES = {
    "bfloat16": jnp.bfloat16,
    "float16": jnp.float16,
    "float8_e4m3": jnp.float8_e4m3fn,
}
_BITS = {1: jnp.uint8, 2: jnp.uint16}


def encode(rows: jax.Array, wire: WireFormat) -> jax.Array:
    """Returns the rounded bits of ``rows``; each row's factor, if any, follows it.

    Args:
      rows: ``[..., width]`` float32 values.
      wire: format of the bits.
    """
    if wire == "float32":
        return rows
    values, bits = _VALUES[wire], _BITS[VALUE_BYTES[wire]]
    if not SCALE_BYTES[wire]:
        return lax.bitcast_convert_type(rows.astype(values), bits)
    # The largest value of a row becomes the largest of the format.
    largest = jnp.abs(rows).max(axis=-1, keepdims=True)
    scale = jnp.maximum(
        largest / float(jnp.finfo(values).max), jnp.finfo(jnp.float32).tiny
    )
    coded = lax.bitcast_convert_type((rows / scale).astype(values), bits)
    scale_bits = lax.bitcast_convert_type(scale[..., 0], bits)
    return jnp.concatenate([coded, scale_bits], axis=-1)


def decode(coded: jax.Array, wire: WireFormat) -> jax.Array:
    """Decodes what ``encode`` made to float32 ``[..., width]``."""
    if wire == "float32":
        return coded
    values = _VALUES[wire]
    if not SCALE_BYTES[wire]:
        return lax.bitcast_convert_type(coded, values).astype(jnp.float32)
    width = coded.shape[-1] - SCALE_BYTES[wire] // VALUE_BYTES[wire]
    rows = lax.bitcast_convert_type(coded[..., :width], values).astype(jnp.float32)
    return rows * lax.bitcast_convert_type(coded[..., width:], jnp.float32)[..., None]
