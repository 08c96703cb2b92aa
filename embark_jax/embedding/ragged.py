"""A flat exchange in which only the filled places travel, for GPUs.

Buffers are those of the padded exchange, a block of equal capacity for each device, so
that both lead to the same result. XLA has this collective for GPUs alone, and as of
jax 0.10.2 schedules a program that has it without overlap, unless it is asked to by
``XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true``.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from embark_jax.embedding.wire import decode, encode
from embark_jax.plans.options import WireFormat
from embark_jax.plans.plan import MESH_AXES


class Filled(NamedTuple):
    """The number of filled places at the front of each block; the rest is padding.

    Attributes:
      sent, received: ``[devices]`` int32, for and from each device.
    """

    sent: jax.Array
    received: jax.Array

    @property
    def back(self) -> Filled:
        """Counts for the answers, which travel the other way."""
        return Filled(self.received, self.sent)


def announce(sent: jax.Array) -> Filled:
    """Tells each device how many places it receives from this one."""
    return Filled(sent, lax.all_to_all(sent, MESH_AXES, 0, 0, tiled=True))


def swap_filled(
    values: jax.Array, filled: Filled, wire: WireFormat = "float32", empty: int = 0
) -> jax.Array:
    """Does what ``Exchange.swap`` does, for the filled places alone.

    Args:
      values: array ``[devices, capacity, ...]``.
      filled: result of ``announce``.
      wire: format as in ``Exchange.swap``.
      empty: value of the other places of the result; 0 if the wire is compressed.
    """
    coded = encode(values, wire)
    devices, capacity = coded.shape[:2]
    places = coded.reshape(devices * capacity, *coded.shape[2:])
    block_start = capacity * jnp.arange(devices, dtype=jnp.int32)
    # Where this device's block begins in what each of the others receives.
    own_start = jnp.full(devices, capacity * lax.axis_index(MESH_AXES), jnp.int32)
    received = lax.ragged_all_to_all(
        places,
        jnp.full_like(places, empty),
        block_start,
        filled.sent,
        own_start,
        filled.received,
        axis_name=MESH_AXES,
    )
    return decode(received.reshape(coded.shape), wire)
