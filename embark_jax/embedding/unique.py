"""UB: ids are made unique before they travel, and each row comes back once.

The requester expands and pools. In backward it sums the gradients of equal ids before
they travel, and the owner sums what several requesters sent for one row.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from embark_kernels import (
    Implementation,
    RowGroups,
    group_rows,
    group_targets,
    pooled_lookup,
    sum_groups,
)

from embark_jax.embedding.cluster import RowGradients
from embark_jax.embedding.exchange import Exchange
from embark_jax.embedding.indexing import StorageIndex
from embark_jax.embedding.routing import unique_by_owner
from embark_jax.embedding.sharded import mean_square_over_column_shards, pick
from embark_jax.planner.wire import Wire


class UniqueRoute(NamedTuple):
    """Attributes:
    slot: ``[devices * capacity]`` received slots; ``slots`` where empty.
    touched: the received slots grouped by row.
    inverse: ``[batch, entries]`` place of each entry's row among those returned.
    returned: the entries grouped by those places.
    weight: ``[batch, entries]`` or None.
    position: ``[devices, capacity]`` first entry behind each place that was sent.
    """

    slot: jax.Array
    touched: RowGroups
    inverse: jax.Array
    returned: RowGroups
    weight: jax.Array | None
    position: jax.Array


class UniqueBased:
    """The UB cluster of one storage; see ``cluster.Cluster``."""

    def __init__(
        self,
        index: StorageIndex,
        exchange: Exchange,
        capacity: int,
        wire: Wire,
        implementation: Implementation,
    ):
        self.index = index
        self.exchange = exchange
        self.capacity = capacity
        self.wire = wire
        self.implementation: Implementation = implementation

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
        received_slot = self.exchange.swap(buckets.slot).reshape(-1)
        implementation, places = self.implementation, buckets.position.size
        route = UniqueRoute(
            received_slot,
            group_rows(received_slot, index.slots, implementation=implementation),
            buckets.inverse.reshape(owner.shape),
            group_targets(buckets.inverse, places, implementation=implementation),
            None if weights is None else weights[:, index.entry_column],
            buckets.position,
        )
        return route, buckets.needed

    def touched(self, route):
        return route.touched.row

    def lookup(self, block, route):
        index = self.index
        width = block.shape[1]
        owned = pick(block, route.slot).reshape(index.devices, -1, width)
        rows = self.exchange.swap(owned, self.wire.rows)
        return pooled_lookup(
            rows.reshape(-1, width),
            route.inverse,
            route.weight,
            hotness=index.hotness,
            implementation=self.implementation,
        )

    def row_gradients(self, gradients, route):
        index = self.index
        batch, _, width = gradients.shape
        sent = sum_groups(
            gradients.reshape(-1, width),
            route.returned,
            index.entry_bags(batch),
            None if route.weight is None else route.weight.reshape(-1),
            implementation=self.implementation,
        )
        sent = sent.reshape(index.devices, -1, width)
        received = self.exchange.swap(sent, self.wire.gradients).reshape(-1, width)
        places = jnp.arange(received.shape[0], dtype=jnp.int32)
        rows = sum_groups(
            received, route.touched, places, implementation=self.implementation
        )
        return RowGradients(self.touched(route), rows)

    def mean_square(self, rows, route):
        if not self.index.column_sharded:
            return None
        return mean_square_over_column_shards(
            self.index,
            self.exchange,
            rows.gradient,
            route.touched,
            route.position,
            route.inverse.reshape(-1),
        )
