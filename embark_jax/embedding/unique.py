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
    bucket_sorted,
    group_rows,
    group_targets,
    sum_groups,
    unique_by_owner,
)

from embark_jax.embedding.cluster import (
    RowGradients,
    Summands,
    flat,
    flat_weights,
    lookup_blocks,
    mean_square_over_column_shards,
    pick,
    sum_up,
    unflat,
    weights_of_requests,
)
from embark_jax.embedding.exchange import Exchange, Filled
from embark_jax.embedding.indexing import StorageIndex
from embark_jax.embedding.keys import WORDS, group_keys, sort_keys, swap_keys
from embark_jax.plans.wire import Wire


class UniqueRoute(NamedTuple):
    """The route of a UB storage.

    Attributes:
      slot: ``[devices * capacity]`` received slots; ``slots`` where empty. Of a
        dynamic table, until its owner resolves it, they are groups of received keys.
      touched: the received slots grouped by row.
      inverse: for each block ``[rows, requests]`` cell of each request's row among
        those returned.
      returned: the requests grouped by those cells.
      weight: for each block ``[rows, requests]`` weight of each request; or None.
      request: ``[devices, capacity]`` first request behind each cell that was sent.
      filled: cells that hold an id, or None where all cells travel.
      keys: as in ``cluster.ShardedCluster``.
    """

    slot: jax.Array
    touched: RowGroups
    inverse: list[jax.Array]
    returned: RowGroups
    weight: list[jax.Array] | None
    request: jax.Array
    filled: Filled | None
    keys: jax.Array | None


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
        self.cells = index.devices * capacity
        self.wire = wire
        self.implementation: Implementation = implementation

    def route(self, requests):
        index, implementation = self.index, self.implementation
        expanded = [
            block.expand(of_block.ids, of_block.keys, index.columns)[1:]
            for block, of_block in zip(index.blocks, requests, strict=True)
        ]
        owners, request_slots = map(list, zip(*expanded, strict=True))
        keys = None
        if index.by_key:
            keys_of_requests = [
                of_block.keys[:, block.request_column]
                for block, of_block in zip(index.blocks, requests, strict=True)
            ]
            keys = flat(keys_of_requests, WORDS)
            in_order = sort_keys(keys, flat(owners), index.devices)
            buckets = bucket_sorted(
                in_order.order,
                in_order.owner,
                in_order.order,
                in_order.is_first,
                index.devices,
                len(keys),
                self.capacity,
                implementation=implementation,
            )
        else:
            buckets = unique_by_owner(
                flat(owners),
                flat(request_slots),
                index.devices,
                index.slots,
                self.capacity,
                implementation=implementation,
            )
        cells = buckets.source.size
        with jax.named_scope("id exchange"):
            count = jnp.minimum(buckets.count, self.capacity)
            filled = self.exchange.announce(count)
            if keys is None:
                received_slot = self.exchange.swap(
                    buckets.slot, filled=filled, empty=index.slots
                ).reshape(-1)
            else:
                sent = keys.at[buckets.source].get(mode="clip")
                received, present = swap_keys(self.exchange, sent, count, filled)
        if keys is None:
            touched = group_rows(
                received_slot,
                index.slots,
                max_groups=index.max_rows,
                implementation=implementation,
            )
        else:
            touched, keys = group_keys(
                received,
                present,
                are_unique=index.devices == 1,
                max_groups=index.max_rows,
                implementation=implementation,
            )
            received_slot = touched.group
        route = UniqueRoute(
            received_slot,
            touched,
            unflat(buckets.inverse, request_slots),
            group_targets(
                buckets.inverse,
                cells,
                sorted_ids=buckets.sorted_ids,
                implementation=implementation,
            ),
            weights_of_requests(index, requests),
            buckets.source,
            filled,
            keys,
        )
        return route, buckets.count.max()

    def finish(self, route, largest):
        return route

    def touched(self, route):
        return route.touched.row

    def with_slots(self, route, slot, updated_slot):
        touched = route.touched
        return route._replace(
            slot=pick(slot, touched.group, self.index.slots),
            touched=touched.with_rows(updated_slot),
            keys=None,
        )

    def lookup(self, block, route):
        index = self.index
        width = block.shape[1]
        owned = pick(block, route.slot).astype(jnp.float32)
        owned = owned.reshape(index.devices, -1, width)
        back = None if route.filled is None else route.filled.back
        with jax.named_scope("row exchange"):
            rows = self.exchange.swap(owned, self.wire.rows, back)
        rows = rows.reshape(-1, width)
        return lookup_blocks(
            index, rows, route.inverse, route.weight, self.implementation
        )

    def summands(self, gradients, route):
        index = self.index
        width = index.storage.width
        sent = sum_groups(
            flat(gradients, width),
            route.returned,
            index.request_bags(),
            flat_weights(route.weight),
            implementation=self.implementation,
        )
        sent = sent.reshape(index.devices, -1, width)
        with jax.named_scope("gradient exchange"):
            received = self.exchange.swap(sent, self.wire.gradients, route.filled)
        received = received.reshape(-1, width)
        cells = jnp.arange(received.shape[0], dtype=jnp.int32)
        return Summands(route.touched, received, cells, None)

    def row_gradients(self, gradients, route):
        rows = sum_up(self.summands(gradients, route), self.implementation)
        return RowGradients(self.touched(route), rows)

    def mean_square(self, rows, route):
        if not self.index.column_sharded:
            return None
        return mean_square_over_column_shards(
            self.index,
            self.exchange,
            rows.gradient,
            route.touched,
            route.request,
            route.inverse,
        )
