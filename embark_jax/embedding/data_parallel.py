"""DP: the storage is replicated; lookups are local, gradients are all-reduced.

Row gradients are all-reduced in a compact buffer that holds the rows touched on any
device, so that a large table costs what the batch touches, not its size. A table that
is smaller than that is all-reduced as a whole.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from embark_jax.embedding.cluster import RowGradients
from embark_jax.embedding.exchange import gather, own_part, sum_over_devices
from embark_jax.embedding.indexing import StorageIndex
from embark_jax.embedding.routing import group_by_slot, sum_bags


class DataParallelRoute(NamedTuple):
    """Attributes:
    slot: ``[batch * entries]`` row of each entry; ``slots`` where padded.
    weight: ``[batch * entries]`` or None.
    place: ``[batch * entries]`` of each entry in the all-reduced buffer.
    touched: ``[rows]`` slot of each row of that buffer; out of range where unused.
    """

    slot: jax.Array
    weight: jax.Array | None
    place: jax.Array
    touched: jax.Array


class DataParallel:
    """The DP cluster of one storage; see ``cluster.Cluster``."""

    def __init__(self, index: StorageIndex):
        self.index = index

    def route(self, ids, weights):
        _, _, slot = self.index.expand(ids)
        slot = slot.reshape(-1)
        slots = self.index.slots
        if slots <= slot.shape[0] * self.index.devices:
            used = jnp.zeros(slots, jnp.int32).at[slot].add(1, mode="drop")
            every = jnp.arange(slots, dtype=jnp.int32)
            touched = jnp.where(sum_over_devices(used) > 0, every, slots + every)
            place = slot
        else:
            grouped = group_by_slot(gather(slot), slots)
            touched = grouped.slot
            place = own_part(grouped.spread(jnp.arange(grouped.rows, dtype=jnp.int32)))
        entry_weight = None
        if weights is not None:
            entry_weight = weights[:, self.index.entry_column].reshape(-1)
        route = DataParallelRoute(slot, entry_weight, place, touched)
        return route, jnp.zeros((), jnp.int32)

    def lookup(self, block, route):
        index = self.index
        batch = route.slot.shape[0] // index.entries
        bag = index.entry_bags(batch)
        bags = index.outputs * batch
        sums = sum_bags(block, route.slot, bag, route.weight, bags)
        return sums.reshape(index.outputs, batch, -1)

    def row_gradients(self, gradients, route):
        width = gradients.shape[-1]
        rows = sum_bags(
            gradients.reshape(-1, width),
            self.index.entry_bags(gradients.shape[1]),
            route.place,
            route.weight,
            route.touched.shape[0],
        )
        return RowGradients(route.touched, sum_over_devices(rows))

    def mean_square(self, rows, route):
        return None
