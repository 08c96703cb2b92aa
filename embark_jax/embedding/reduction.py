"""RB: the owner pools the rows it owns, partial sums travel, the requester adds them.

An owner receives just the ids whose rows it holds, each with the bag it belongs to.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from embark_kernels import (
    Implementation,
    RowGroups,
    bucket_by_owner,
    group_rows,
    sum_bags,
    sum_groups,
)
from jax import lax

from embark_jax.embedding.cluster import RowGradients
from embark_jax.embedding.exchange import exchange
from embark_jax.embedding.indexing import StorageIndex
from embark_jax.embedding.sharded import mean_square_over_column_shards, pick
from embark_jax.embedding.wire import exchange_rows
from embark_jax.planner.wire import Wire


class ReductionRoute(NamedTuple):
    """Attributes:
    slot: ``[devices, capacity]`` received slots; ``slots`` where empty.
    bag: ``[devices, capacity]`` (sample, piece) of each, flattened, ascending for each
      requester; ``batch * pieces`` where empty.
    weight: ``[devices, capacity]`` or None.
    touched: the received slots grouped by row.
    position: ``[devices, capacity]`` entry behind each place that was sent.
    """

    slot: jax.Array
    bag: jax.Array
    weight: jax.Array | None
    touched: RowGroups
    position: jax.Array


class ReductionBased:
    """The RB cluster of one storage; see ``cluster.Cluster``."""

    def __init__(
        self,
        index: StorageIndex,
        capacity: int,
        batch: int,
        wire: Wire,
        implementation: Implementation,
    ):
        self.index = index
        self.capacity = capacity
        self.batch = batch
        self.wire = wire
        self.implementation: Implementation = implementation

    def route(self, ids, weights):
        index = self.index
        shard, owner, slot = index.expand(ids)
        piece = jnp.asarray(index.shard_piece)[shard]
        sample = jnp.arange(self.batch, dtype=jnp.int32)[:, None]
        bag, bags = sample * index.pieces + piece, self.batch * index.pieces
        # Entries of a sample come output by output, and so do the pieces of an owner:
        # they are in order already, but where an owner pools an output in several.
        keep = index.one_piece_an_output
        buckets = bucket_by_owner(
            owner.reshape(-1),
            index.devices,
            self.capacity,
            minor=None if keep else bag.reshape(-1),
            minors=1 if keep else bags,
        )

        def picked(entries, fill):
            return pick(entries.reshape(-1), buckets.position, fill)

        sent = [picked(slot, index.slots), picked(bag, bags)]
        if weights is not None:
            weight = picked(weights[:, index.entry_column], 0)
            sent.append(lax.bitcast_convert_type(weight, jnp.int32))
        received = exchange(jnp.stack(sent, axis=-1))
        received_slot, received_bag = received[..., 0], received[..., 1]
        received_weight = None
        if weights is not None:
            received_weight = lax.bitcast_convert_type(received[..., 2], jnp.float32)
        route = ReductionRoute(
            received_slot,
            received_bag,
            received_weight,
            group_rows(
                received_slot.reshape(-1),
                index.slots,
                implementation=self.implementation,
            ),
            buckets.position,
        )
        return route, buckets.needed

    def touched(self, route):
        return route.touched.row

    def lookup(self, block, route):
        index = self.index
        bags = self.batch * index.pieces
        sums = sum_bags(
            block,
            route.slot,
            route.bag,
            bags,
            route.weight,
            implementation=self.implementation,
        )
        shape = (index.devices, self.batch, index.pieces, block.shape[1])
        return self._add_row_shards(exchange_rows(sums.reshape(shape), self.wire.rows))

    def row_gradients(self, gradients, route):
        index = self.index
        width = gradients.shape[-1]
        sent = pick(gradients.transpose(1, 0, 2), jnp.asarray(index.piece_output))
        sent = sent.transpose(0, 2, 1, 3)  # [devices, batch, pieces, width]
        received = exchange_rows(sent, self.wire.gradients).reshape(-1, width)
        bags = self.batch * index.pieces
        requester = jnp.arange(index.devices, dtype=jnp.int32)[:, None]
        source = jnp.where(route.bag < bags, requester * bags + route.bag, -1)
        rows = sum_groups(
            received,
            route.touched,
            source.reshape(-1),
            None if route.weight is None else route.weight.reshape(-1),
            implementation=self.implementation,
        )
        return RowGradients(self.touched(route), rows)

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
        """``[devices, batch, pieces, width]`` partial sums to ``[batch, outputs, …]``.

        Outputs with equally many row shards are summed together, so that the program
        grows with the different shard counts of a plan, not with its tables.
        """
        index = self.index
        order, sums = [], []
        for count in np.unique(index.output_row_shards):
            outputs = np.flatnonzero(index.output_row_shards == count)
            shard = index.output_first_shard[outputs][:, None] + np.arange(count)
            parts = received[index.shard_owner[shard], :, index.shard_piece[shard]]
            order.append(outputs)
            sums.append(parts.sum(axis=1))  # [outputs, batch, width]
        joined = jnp.concatenate(sums)[np.argsort(np.concatenate(order))]
        return joined.transpose(1, 0, 2)
