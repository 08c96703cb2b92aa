"""UB: ids are made unique before they travel, and each row comes back once.

The requester expands and pools. In backward it sums the gradients of equal ids before
they travel, and the owner sums what several requesters sent for one row.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from embark_kernels import (
    RowGroups,
    bucket_sorted,
    group_targets,
    sum_groups,
    unique_by_owner,
)

from embark_jax.embedding.cluster import (
    GradientTerms,
    Keys,
    ShardedCluster,
    flat,
    flat_weights,
    lookup_blocks,
    pick,
    unflat,
    weights_of_requests,
)
from embark_jax.embedding.keys import WORDS, exchange_keys, sort_keys


class UniqueRoute(NamedTuple):
    """The route of a UB storage.

    Attributes:
      slot: ``[devices * capacity]`` received slots; ``slots`` where empty.
      touched: the received slots grouped by row.
      inverse: for each block ``[rows, requests]`` place of each request's row among
        those returned.
      returned: the requests grouped by those places.
      weight: for each block ``[rows, requests]`` weight of each request; or None.
      request, keys, row_keys: as in ``cluster.ShardedCluster``.
    """

    slot: jax.Array | None
    touched: RowGroups | None
    inverse: list[jax.Array]
    returned: RowGroups
    weight: list[jax.Array] | None
    request: jax.Array
    keys: Keys | None
    row_keys: jax.Array | None = None


class UniqueBased(ShardedCluster):
    """The UB cluster of one storage; see ``cluster.Cluster``."""

    def route(self, requests):
        index, implementation = self.index, self.implementation
        expanded = [
            block.expand(asked.ids)[1:]
            for block, asked in zip(index.blocks, requests, strict=True)
        ]
        owners, rows = map(list, zip(*expanded, strict=True))
        received_slot = touched = keys = None
        if index.storage.cached:
            words = flat(rows, WORDS)
            in_order = sort_keys(words, flat(owners), index.devices)
            buckets = bucket_sorted(
                in_order.order,
                in_order.owner,
                in_order.order,  # in the place of slots, which are not known yet
                in_order.is_first,
                index.devices,
                len(words),
                self.capacity,
                implementation=implementation,
            )
            sent = words.at[buckets.source].get(mode="clip")
            count = jnp.minimum(buckets.count, self.capacity)
            with jax.named_scope("id exchange"):
                keys = Keys(*exchange_keys(self.exchange, sent, count))
        else:
            buckets = unique_by_owner(
                flat(owners),
                flat(rows),
                index.devices,
                index.slots,
                self.capacity,
                implementation=implementation,
            )
            with jax.named_scope("id exchange"):
                received_slot = self.exchange.all_to_all(buckets.slot).reshape(-1)
            touched = self.group(received_slot, index.slots)
        route = UniqueRoute(
            received_slot,
            touched,
            unflat(buckets.inverse, owners),
            group_targets(
                buckets.inverse,
                buckets.source.size,
                sorted_ids=buckets.sorted_ids,
                implementation=implementation,
            ),
            weights_of_requests(index, requests),
            buckets.source,
            keys,
        )
        return route, self.capacities_needed(buckets.count.max(), touched)

    def with_slots(self, route, slot, touched):
        return route._replace(slot=slot, touched=touched, keys=None)

    def lookup(self, storage_block, route, dtype):
        index = self.index
        width = storage_block.shape[1]
        owned = pick(storage_block, route.slot).astype(jnp.float32)
        owned = owned.reshape(index.devices, -1, width)
        with jax.named_scope("row exchange"):
            rows = self.exchange.all_to_all(owned, self.wire.rows)
        rows = rows.reshape(-1, width)
        return lookup_blocks(
            index, rows, route.inverse, route.weight, dtype, self.implementation
        )

    def gradient_terms(self, gradients, route):
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
            received = self.exchange.all_to_all(sent, self.wire.gradients)
        received = received.reshape(-1, width)
        places = jnp.arange(received.shape[0], dtype=jnp.int32)
        return GradientTerms(route.touched, received, places, None)

    def sent_places(self, route):
        return route.inverse
