"""RB: the owner pools the rows it owns, partial sums travel, the requester adds them.

An owner receives just the ids whose rows it holds, each with the bag it belongs to.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from embark_kernels import bucket_by_owner

from embark_jax.embedding.cluster import RowGradients
from embark_jax.embedding.exchange import exchange
from embark_jax.embedding.indexing import StorageIndex
from embark_jax.embedding.routing import (
    Touched,
    group_by_slot,
    sum_bags,
)
from embark_jax.embedding.sharded import mean_square_over_column_shards, pick


class ReductionRoute(NamedTuple):
    """Attributes:
    slot: ``[devices * capacity]`` received slots; ``slots`` where empty.
    bag: ``[devices * capacity]`` (requester, piece, sample) of each, flattened.
    weight: ``[devices * capacity]`` or None.
    touched: the received slots grouped by row.
    position: ``[devices, capacity]`` entry behind each place that was sent.
    """

    slot: jax.Array
    bag: jax.Array
    weight: jax.Array | None
    touched: Touched
    position: jax.Array


class ReductionBased:
    """The RB cluster of one storage; see ``cluster.Cluster``."""

    def __init__(self, index: StorageIndex, capacity: int, batch: int):
        self.index = index
        self.capacity = capacity
        self.batch = batch

    def route(self, ids, weights):
        index = self.index
        batch = self.batch
        shard, owner, slot = index.expand(ids)
        piece = jnp.asarray(index.shard_piece)[shard]
        bag = piece * batch + jnp.arange(batch, dtype=jnp.int32)[:, None]
        buckets = bucket_by_owner(owner.reshape(-1), index.devices, self.capacity)

        def send(entries, fill):
            return exchange(pick(entries.reshape(-1), buckets.position, fill))

        received_slot = send(slot, index.slots).reshape(-1)
        bags = index.pieces * batch
        requester = jnp.arange(index.devices, dtype=jnp.int32)[:, None]
        received_bag = (send(bag, 0) + requester * bags).reshape(-1)
        received_bag = jnp.where(
            received_slot < index.slots, received_bag, index.devices * bags
        )
        weight = None
        if weights is not None:
            weight = send(weights[:, index.entry_column], 0).reshape(-1)
        route = ReductionRoute(
            received_slot,
            received_bag,
            weight,
            group_by_slot(received_slot, index.slots),
            buckets.position,
        )
        return route, buckets.needed

    def lookup(self, block, route):
        index = self.index
        batch = self.batch
        bags = index.devices * index.pieces * batch
        sums = sum_bags(block, route.slot, route.bag, route.weight, bags)
        shape = (index.devices, index.pieces, batch, block.shape[1])
        received = exchange(sums.reshape(shape)).reshape(-1, *shape[2:])
        return self._add_row_shards(received)

    def row_gradients(self, gradients, route):
        index = self.index
        width = gradients.shape[-1]
        sent = pick(gradients, jnp.asarray(index.piece_output))
        received = exchange(sent).reshape(-1, width)
        entries = pick(received, route.bag)
        if route.weight is not None:
            entries = entries * route.weight[:, None]
        return RowGradients(route.touched.slot, route.touched.sum(entries))

    def mean_square(self, rows, route):
        if not self.index.column_sharded:
            return None
        places = jnp.arange(route.position.size, dtype=jnp.int32)
        entries = self.batch * self.index.entries
        inverse = jnp.full(entries, route.position.size, jnp.int32)
        inverse = inverse.at[route.position.reshape(-1)].set(places, mode="drop")
        return mean_square_over_column_shards(
            self.index, rows.gradient, route.touched, route.position, inverse
        )

    def _add_row_shards(self, received: jax.Array) -> jax.Array:
        """``[devices * pieces, batch, width]`` partial sums to ``[outputs, …]``.

        Outputs with equally many row shards are summed together, so that the program
        grows with the different shard counts of a plan, not with its tables.
        """
        index = self.index
        place = index.shard_owner * index.pieces + index.shard_piece
        order, sums = [], []
        for count in np.unique(index.output_row_shards):
            outputs = np.flatnonzero(index.output_row_shards == count)
            first = index.output_first_shard[outputs]
            places = place[first[:, None] + np.arange(count)]
            order.append(outputs)
            sums.append(received[places].sum(axis=1))
        return jnp.concatenate(sums)[np.argsort(np.concatenate(order))]
