"""Rows and ids on the wire.

Rows are rounded just before they travel, and float32 again on arrival. Unsigned
integers travel, so that no compiler pass widens rows or moves the rounding to the other
side of the exchange.

Ids of RB tell an owner, in few bytes, what it pools for a device. They lie bag after
bag, so that the last byte of its bag's number is enough for each: the end of each block
of ``BLOCK_BAGS`` bags among the ids travels with them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from embark_jax.plans.options import WireFormat
from embark_jax.plans.wire import (
    BLOCK_BAGS,
    SCALE_BYTES,
    SLOT_BYTES,
    VALUE_BYTES,
    id_bytes,
    pooled_id_bytes,
)

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


class PooledIds(NamedTuple):
    """Ids for, or from, each device.

    Attributes:
      slot: ``[devices, capacity]`` int32 slot of each id; ``[devices, capacity, 2]``
        uint32 keys while those of a dynamic table travel.
      bag: ``[devices, capacity]`` int32 bag of each id, ascending along a line;
        ``bags`` where there is no id.
      weight: ``[devices, capacity]`` float32 weight of each id, or None.
    """

    slot: jax.Array
    bag: jax.Array
    weight: jax.Array | None


def encode_ids(ids: PooledIds, bags: int, blocks: int) -> jax.Array:
    """Returns the bytes that travel, ``[devices, bytes]`` uint8.

    Args:
      ids: ids for each device.
      bags: number of bags that one device pools for one other.
      blocks: number of blocks that hold all these bags.
    """
    bag = jnp.where(ids.bag < bags, ids.bag, BLOCK_BAGS * blocks)
    beyond = BLOCK_BAGS * jnp.arange(1, blocks + 1, dtype=jnp.int32)
    ends = jax.vmap(lambda line: jnp.searchsorted(line, beyond))(bag)
    coded = [(bag % BLOCK_BAGS).astype(jnp.uint8), _to_bytes(ids.slot)]
    if ids.weight is not None:
        coded.append(_to_bytes(ids.weight))
    return jnp.concatenate([*coded, _to_bytes(ends.astype(jnp.int32))], axis=1)


def decode_ids(
    coded: jax.Array, bags: int, blocks: int, weighted: bool, by_key: bool = False
) -> PooledIds:
    """Decodes the bytes that ``encode_ids`` made.

    Args:
      coded: bytes from each device.
      bags, blocks: as in ``encode_ids``.
      weighted: whether ids have weights.
      by_key: whether keys travel, not slots.
    """
    ids_bytes = coded.shape[1] - SLOT_BYTES * blocks
    capacity = ids_bytes // pooled_id_bytes(weighted, by_key)
    field_bytes = [1, id_bytes(by_key)] + [SLOT_BYTES] * weighted
    cuts = np.cumsum(field_bytes) * capacity
    low, slot, *weight, ends = jnp.split(coded, cuts, axis=1)
    cell = jnp.arange(capacity, dtype=jnp.int32)
    block = jax.vmap(
        lambda line: jnp.searchsorted(line, cell, "right", method="scan_unrolled")
    )(_from_bytes(ends, jnp.int32))
    bag = BLOCK_BAGS * block.astype(jnp.int32) + low.astype(jnp.int32)
    if by_key:
        ids = _from_bytes(slot, jnp.uint32).reshape(*low.shape, -1)
    else:
        ids = _from_bytes(slot, jnp.int32)
    return PooledIds(
        ids,
        jnp.minimum(bag, bags),
        _from_bytes(weight[0], jnp.float32) if weighted else None,
    )


def _to_bytes(values: jax.Array) -> jax.Array:
    """Turns ``[lines, n]`` of 32 bits into ``[lines, 4 n]`` bytes."""
    return lax.bitcast_convert_type(values, jnp.uint8).reshape(len(values), -1)


def _from_bytes(coded: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """Inverts ``_to_bytes``."""
    return lax.bitcast_convert_type(coded.reshape(len(coded), -1, SLOT_BYTES), dtype)
