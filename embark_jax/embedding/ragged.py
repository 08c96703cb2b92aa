"""A flat exchange in which only the filled cells travel, for GPUs.

Buffers are those of the padded exchange, a block of equal capacity for each device, so
that both lead to the same result. XLA has this collective for GPUs alone, and as of
jax 0.10.2 schedules a program that has it without overlap, unless it is asked to by
``XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from embark_jax.embedding.exchange import Filled, FlatExchange
from embark_jax.embedding.partial_sums import PartialSums
from embark_jax.embedding.wire import decode, encode
from embark_jax.plans.options import WireFormat
from embark_jax.plans.plan import MESH_AXES


class RaggedExchange:
    """Sends filled cells alone where it knows them, else all; see ``Exchange``."""

    def __init__(self, partial_sums: PartialSums):
        self._flat = FlatExchange(partial_sums)

    def announce(self, counts) -> Filled | None:
        received = lax.all_to_all(counts, MESH_AXES, 0, 0, tiled=True)
        return Filled(counts, received)

    def swap(self, values, wire: WireFormat = "float32", filled=None, empty=0):
        if filled is None:
            return self._flat.swap(values, wire)
        return swap_filled(values, filled, wire, empty)

    def sums_to_requesters(self, sums, wire):
        return self._flat.sums_to_requesters(sums, wire)

    def gradients_to_owners(self, gradients, wire):
        return self._flat.gradients_to_owners(gradients, wire)


def swap_filled(
    values: jax.Array, filled: Filled, wire: WireFormat, empty: int
) -> jax.Array:
    """Does what ``Exchange.swap`` does, for the filled cells alone."""
    coded = encode(values, wire)
    devices, capacity = coded.shape[:2]
    cells = coded.reshape(devices * capacity, *coded.shape[2:])
    block_start = capacity * jnp.arange(devices, dtype=jnp.int32)
    # Where this device's block begins in what each of the others receives.
    own_start = jnp.full(devices, capacity * lax.axis_index(MESH_AXES), jnp.int32)
    received = lax.ragged_all_to_all(
        cells,
        jnp.full_like(cells, empty),
        block_start,
        filled.sent,
        own_start,
        filled.received,
        axis_name=MESH_AXES,
    )
    return decode(received.reshape(coded.shape), wire)
