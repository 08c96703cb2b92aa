"""RB in which bags that have no ids at an owner stay home.

An owner pools only the bags that it gets ids for, and its sums come back one after the
other. The requester knows whose they are: it looks them up, bag by bag, in what came
back. That is less to send where most bags have few ids and tables many row shards, or
where most ids are hot and do not travel.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from embark_kernels import (
    Implementation,
    RowGroups,
    bucket_by_owner,
    sort_positions,
    sum_bags,
)

from embark_jax.embedding.exchange import Exchange
from embark_jax.embedding.id_wire import PooledIds, decode_in_turn, encode_in_turn
from embark_jax.embedding.indexing import StorageIndex
from embark_jax.embedding.reduction import ReductionBased
from embark_jax.embedding.sharded import pick
from embark_jax.planner.request.wire import Wire


class CompactRoute(NamedTuple):
    """Attributes:
    received: ids of each requester: slots, ``slots`` where empty; bags are numbers of
      the sums that it gets.
    touched: the received slots grouped by row.
    position: ``[devices, capacity]`` entry behind each place that was sent.
    bag: ``[devices, sums]`` bag of this device, sample by sample and output by output,
      that each sum is part of; as many as there are where there is no sum.
    sorted_bag, order: ``[devices * sums]`` these bags sorted, and where each was.
    """

    received: PooledIds
    touched: RowGroups
    position: jax.Array
    bag: jax.Array
    sorted_bag: jax.Array
    order: jax.Array


class CompactReduction(ReductionBased):
    """The RB cluster of one storage whose empty partial sums stay home.

    Args:
      index, exchange, capacity, batch, wire, implementation: as of ``ReductionBased``.
      sums: static number of partial sums that a device can get of one other.
    """

    def __init__(
        self,
        index: StorageIndex,
        exchange: Exchange,
        capacity: int,
        batch: int,
        wire: Wire,
        implementation: Implementation,
        sums: int,
    ):
        super().__init__(index, exchange, capacity, batch, wire, implementation)
        self.sums = sums

    def route(self, ids, weights):
        index, bags = self.index, self.batch * self.index.outputs
        _, owner, slot = index.expand(ids)
        entry_bag = index.entry_bags(self.batch)
        buckets = bucket_by_owner(owner.reshape(-1), index.devices, self.capacity)
        sent = self._ids_to_send(buckets, slot, entry_bag, bags, weights)

        # Entries come bag by bag, and so do those of a bucket.
        before = jnp.pad(sent.bag[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
        begins = (sent.bag != before) & (sent.bag < bags)
        number = jnp.cumsum(begins, axis=1, dtype=jnp.int32) - 1
        device = jnp.arange(index.devices, dtype=jnp.int32)[:, None]
        bag = jnp.full((index.devices, self.sums), bags, jnp.int32)
        target = jnp.where(begins, number, self.sums)
        bag = bag.at[device, target].set(sent.bag, mode="drop")
        number = jnp.where(sent.bag < bags, number, self.sums)

        received = self._swap(sent._replace(bag=number))
        sorted_bag, order = sort_positions(bag.reshape(-1), bags + 1)
        route = CompactRoute(
            *(received, self._touched(received), buckets.position),
            *(bag, sorted_bag, order),
        )
        return route, (buckets.needed, begins.sum(axis=1, dtype=jnp.int32).max())

    def _swap(self, ids):
        if self.index.devices == 1:
            return ids
        coded = self.exchange.swap(encode_in_turn(ids))
        weighted = ids.weight is not None
        return decode_in_turn(coded, self.sums, self.index.slots, weighted)

    def _to_requesters(self, sums, route):
        received = self.exchange.swap(sums, self.wire.rows)
        pooled = sum_bags(
            received.reshape(-1, sums.shape[2]),
            route.order[None],
            route.sorted_bag[None],
            self.batch * self.index.outputs,
            implementation=self.implementation,
        )
        return pooled.reshape(self.batch, self.index.outputs, -1)

    def _to_owners(self, gradients, route):
        flat = gradients.reshape(-1, gradients.shape[2])
        return self.exchange.swap(pick(flat, route.bag), self.wire.gradients)

    @property
    def _bags(self) -> int:
        return self.sums
