"""RB: the owner pools the rows it owns, partial sums travel, the requester adds them.

An owner receives just the ids whose rows it holds, each with the bag it belongs to.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from embark_kernels import (
    RowGroups,
    bucket_by_owner,
    sum_bags,
)
from jax import lax

from embark_jax.embedding.cluster import (
    GradientTerms,
    Keys,
    ShardedCluster,
    pick,
    weights_of_requests,
)
from embark_jax.embedding.indexing import FeatureBlock
from embark_jax.embedding.keys import WORDS


class PooledIds(NamedTuple):
    """Ids for, or from, each device.

    Attributes:
      slot: ``[devices, capacity]`` int32 slot of each id; ``[devices, capacity, 2]``
        uint32 keys while those of a cached storage travel.
      bag: ``[devices, capacity]`` int32 bag of each id, ascending along a line;
        ``bags`` where there is no id.
      weight: ``[devices, capacity]`` float32 weight of each id, or None.
    """

    slot: jax.Array
    bag: jax.Array
    weight: jax.Array | None


class ReductionRoute(NamedTuple):
    """The route of an RB storage.

    Attributes:
      received: ids from each requester, as slots; ``slots`` where empty. Bags are
        (sample, partial sum), flattened.
      touched: the received slots grouped by row.
      request, keys, row_keys: as in ``cluster.ShardedCluster``.
    """

    received: PooledIds
    touched: RowGroups | None
    request: jax.Array
    keys: Keys | None
    row_keys: jax.Array | None = None


class ReductionBased(ShardedCluster):
    """The RB cluster of one storage; see ``cluster.Cluster``. No sequence reads it, so
    its index has one block."""

    @property
    def feature_block(self) -> FeatureBlock:
        """Its one block."""
        return self.index.blocks[0]

    @property
    def batch(self) -> int:
        """Samples of a device."""
        return self.feature_block.rows

    def route(self, requests):
        index, partial_sums = self.index, self.feature_block.partial_sums
        (asked,) = requests
        shard, owner, row = self.feature_block.expand(asked.ids)
        rank = jnp.asarray(partial_sums.rank)[shard]
        sample = jnp.arange(self.batch, dtype=jnp.int32)[:, None]
        bag, bags = sample * partial_sums.ranks + rank, self._bags
        # Requests of a sample come output by output, and so do the sums of an owner:
        # they are in order already, unless an owner pools an output in several sums.
        keep = partial_sums.one_an_output
        buckets = bucket_by_owner(
            owner.reshape(-1),
            index.devices,
            self.capacity,
            minor=None if keep else bag.reshape(-1),
            minors=1 if keep else bags,
        )

        def picked(requests, fill):
            return pick(requests.reshape(-1), buckets.source, fill)

        weights = weights_of_requests(index, requests)
        weight = None if weights is None else picked(weights[0], 0)
        if index.storage.cached:
            sent = row.reshape(-1, WORDS).at[buckets.source].get(mode="clip")
        else:
            sent = picked(row, index.slots)
        received = self._swap(PooledIds(sent, picked(bag, bags), weight))
        touched = keys = None
        if index.storage.cached:
            words = received.slot.reshape(-1, WORDS)
            keys = Keys(words, (received.bag < bags).reshape(-1))
        else:
            touched = self.group(received.slot.reshape(-1), index.slots)
        route = ReductionRoute(received, touched, buckets.source, keys)
        return route, self.capacities_needed(buckets.needed, touched)

    @jax.named_scope("id exchange")
    def _swap(self, ids: PooledIds) -> PooledIds:
        """Sends ids in one array of 32-bit values, ``[devices, values, capacity]``."""
        if self.index.devices == 1:
            return ids
        slots = (
            jnp.moveaxis(ids.slot, 2, 0) if self.index.storage.cached else [ids.slot]
        )
        values = [*slots, ids.bag, *([] if ids.weight is None else [ids.weight])]
        bits = [lax.bitcast_convert_type(value, jnp.uint32) for value in values]
        received = self.exchange.all_to_all(jnp.stack(bits, axis=1))
        slot, bag = received[:, 0], received[:, len(slots)]
        if self.index.storage.cached:
            slot = jnp.moveaxis(received[:, :WORDS], 1, 2)
        return PooledIds(
            lax.bitcast_convert_type(slot, ids.slot.dtype),
            lax.bitcast_convert_type(bag, jnp.int32),
            None
            if ids.weight is None
            else lax.bitcast_convert_type(received[:, -1], jnp.float32),
        )

    def with_slots(self, route, slot, touched):
        slots = slot.reshape(route.received.bag.shape)
        received = route.received._replace(slot=slots)
        return route._replace(received=received, touched=touched, keys=None)

    def lookup(self, storage_block, route, dtype):
        slot, bag, weight = route.received
        sums = sum_bags(
            storage_block,
            slot,
            bag,
            self._bags,
            weight,
            implementation=self.implementation,
        )
        sums = sums.reshape(len(sums), self.batch, -1, storage_block.shape[1])
        with jax.named_scope("row exchange"):
            return [self.exchange.sums_to_requesters(sums, self.wire.rows)]

    def gradient_terms(self, gradients, route):
        (gradient,) = gradients
        with jax.named_scope("gradient exchange"):
            wire = self.wire.gradients
            gradient = gradient.astype(jnp.float32)  # as the wire has them
            received = self.exchange.gradients_to_owners(gradient, wire)
        _, bag, weight = route.received
        bags = self._bags
        requester = jnp.arange(self.index.devices, dtype=jnp.int32)[:, None]
        source = jnp.where(bag < bags, requester * bags + bag, -1)
        return GradientTerms(
            route.touched,
            received.reshape(-1, received.shape[-1]),
            source.reshape(-1),
            None if weight is None else weight.reshape(-1),
        )

    def sent_places(self, route):
        place = jnp.arange(route.request.size, dtype=jnp.int32)
        shape = self.batch, self.feature_block.requests
        inverse = jnp.full(math.prod(shape), route.request.size, jnp.int32)
        inverse = inverse.at[route.request.reshape(-1)].set(place, mode="drop")
        return [inverse.reshape(shape)]

    @property
    def _bags(self) -> int:
        """Bags that a device pools for each device."""
        return self.batch * self.feature_block.partial_sums.ranks
