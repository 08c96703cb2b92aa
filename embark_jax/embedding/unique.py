"""UB: ids are made unique before they travel, and each row comes back once.

The requester expands and pools. In backward it sums the gradients of equal ids before
they travel, and the owner sums what several requesters sent for one row.
"""

from __future__ import annotations

from typing import NamedTuple

import jax

from embark_jax.embedding.cluster import RowGradients
from embark_jax.embedding.exchange import exchange
from embark_jax.embedding.indexing import StorageIndex
from embark_jax.embedding.routing import (
    Touched,
    group_by_slot,
    sum_bags,
    unique_by_owner,
)
from embark_jax.embedding.sharded import mean_square_over_column_shards, pick


class UniqueRoute(NamedTuple):
    """Attributes:
    slot: ``[devices * capacity]`` received slots; ``slots`` where empty.
    touched: the received slots grouped by row.
    inverse: ``[batch * entries]`` place of each entry's row among those returned.
    weight: ``[batch * entries]`` or None.
    position: ``[devices, capacity]`` first entry behind each place that was sent.
    """

    slot: jax.Array
    touched: Touched
    inverse: jax.Array
    weight: jax.Array | None
    position: jax.Array


class UniqueBased:
    """The UB cluster of one storage; see ``cluster.Cluster``."""

    def __init__(self, index: StorageIndex, capacity: int):
        self.index = index
        self.capacity = capacity

    def route(self, ids, weights):
        index = self.index
        _, owner, slot = index.expand(ids)
        buckets = unique_by_owner(
            owner.reshape(-1),
            slot.reshape(-1),
            index.devices,
            index.slots,
            self.capacity,
        )
        received_slot = exchange(buckets.slot).reshape(-1)
        weight = None
        if weights is not None:
            weight = weights[:, index.entry_column].reshape(-1)
        route = UniqueRoute(
            received_slot,
            group_by_slot(received_slot, index.slots),
            buckets.inverse,
            weight,
            buckets.position,
        )
        return route, buckets.needed

    def lookup(self, block, route):
        index = self.index
        width = block.shape[1]
        batch = route.inverse.shape[0] // index.entries
        owned = pick(block, route.slot)
        rows = exchange(owned.reshape(index.devices, -1, width)).reshape(-1, width)
        bag = index.entry_bags(batch)
        bags = index.outputs * batch
        sums = sum_bags(rows, route.inverse, bag, route.weight, bags)
        return sums.reshape(index.outputs, batch, width)

    def row_gradients(self, gradients, route):
        index = self.index
        width = gradients.shape[-1]
        places = index.devices * self.capacity
        sent = sum_bags(
            gradients.reshape(-1, width),
            index.entry_bags(gradients.shape[1]),
            route.inverse,
            route.weight,
            places,
        )
        received = exchange(sent.reshape(index.devices, -1, width)).reshape(-1, width)
        return RowGradients(route.touched.slot, route.touched.sum(received))

    def mean_square(self, rows, route):
        if not self.index.column_sharded:
            return None
        return mean_square_over_column_shards(
            self.index, rows.gradient, route.touched, route.position, route.inverse
        )
