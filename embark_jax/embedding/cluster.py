"""The interface that the three clusters share and the collection composes, and some
functions that they share.

All methods run on one device, inside ``shard_map``. Ids, lookups and gradients are
lists, with an array for each block of the storage's index; ``rows``, ``outputs`` and
``requests`` are those of the block.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from embark_kernels import (
    Implementation,
    RowGroups,
    group_rows,
    pooled_lookup,
    sum_groups,
)
from jax.typing import DTypeLike

from embark_jax.embedding.batch_ids import add_columns
from embark_jax.embedding.exchange import Exchange
from embark_jax.embedding.indexing import Requests, StorageIndex
from embark_jax.plans.capacities import rows_of
from embark_jax.plans.wire import Wire

Route = Any
"""A NamedTuple of arrays, of one type per cluster; it depends on ids alone."""


class RowGradients(NamedTuple):
    """Summed gradients of the rows of a device's block that the batch touched.

    Attributes:
      slot: ``[rows]`` int32, each once; out of range where unused.
      gradient: ``[rows, width]`` float32, summed over all devices.
    """

    slot: jax.Array
    gradient: jax.Array


class GradientTerms(NamedTuple):
    """The terms of a device's row gradients, as ``sum_groups`` takes them.

    Attributes:
      groups: requests, grouped by row.
      values: ``[m, width]`` gradients.
      source: ``[n]`` index of each request's value.
      weight: ``[n]`` float32 weight of each request, or None.
    """

    groups: RowGroups
    values: jax.Array
    source: jax.Array
    weight: jax.Array | None


class Keys(NamedTuple):
    """The keys of a cached storage that a device received.

    Attributes:
      words: ``[received, 2]`` uint32, as ``FeatureBlock.expand`` gives them.
      present: ``[received]`` bool: which places hold one.
    """

    words: jax.Array
    present: jax.Array


@dataclasses.dataclass(eq=False)
class Cluster(abc.ABC):
    """A way to move rows: DataParallel, or a ``ShardedCluster``.

    Attributes:
      index: index of the storage.
      exchange: exchange of ids, rows and gradients; DP needs none.
      capacity: number of ids that a device can send to one other; DP sends none.
      rows: number of rows that a device can update.
      wire: formats in which rows and gradients travel.
      implementation: kernels of lookups and sums.
    """

    index: StorageIndex
    exchange: Exchange
    capacity: int
    rows: int
    wire: Wire
    implementation: Implementation

    @abc.abstractmethod
    def route(self, requests: list[Requests]) -> tuple[Route, Any]:
        """Finds where each id goes, and int32 values of which the step needs the
        largest over all devices: the ``[]`` capacities that the route needs here, by
        name, or in DP what ``finish`` takes."""

    @abc.abstractmethod
    def finish(self, route: Route, largest: Any) -> tuple[Route, dict[str, jax.Array]]:
        """Returns the route once the values of all devices are known, and the ``[]``
        int32 capacities that the batch needs, by name.

        Args:
          route: first result of ``route``.
          largest: maximum over all devices of the second result of ``route``.
        """

    @abc.abstractmethod
    def lookup(
        self, storage_block: jax.Array, route: Route, dtype: DTypeLike
    ) -> list[jax.Array]:
        """Returns weighted sums of each bag's rows, ``[rows, outputs, width]``, from
        this device's block of the storage. Sums that this device makes as a whole are
        of the dtype, others float32."""

    @property
    def sums_alone(self) -> bool:
        """Whether no other device adds to the sums of ``gradient_terms``."""
        return True

    @abc.abstractmethod
    def gradient_terms(self, gradients: list[jax.Array], route: Route) -> GradientTerms:
        """Returns what ``row_gradients`` sums on this device."""

    @abc.abstractmethod
    def row_gradients(self, gradients: list[jax.Array], route: Route) -> RowGradients:
        """Turns gradients of ``lookup``'s result into those of this device's rows."""

    def mean_square(self, rows: RowGradients, route: Route) -> jax.Array | None:
        """Returns ``[rows]``: the mean of gradient² over the whole row, all column
        shards; None where this device has whole rows."""
        return None


class ShardedCluster(Cluster):
    """A cluster whose rows have owners, and may be cached: ReductionBased or
    UniqueBased.

    Routes have ``touched``, what a device received, grouped by row. Those of a cached
    storage have the ``keys`` that it received instead, until it resolves them. Of a
    cached storage in 16 bits they have ``row_keys`` with their slots, by which rows are
    rounded: ``[rows, 2]``, as in ``Keys``. ``request`` is ``[devices, capacity]``, the
    request of this device behind each place that it sent.
    """

    @abc.abstractmethod
    def with_slots(self, route: Route, slot: jax.Array, touched: RowGroups) -> Route:
        """Returns the route once its keys are resolved.

        Args:
          route: route with keys.
          slot: ``[received]`` int32 slot of each key; out of range where there is none.
          touched: the keys, grouped by the slots that may be updated.
        """

    @abc.abstractmethod
    def sent_places(self, route: Route) -> list[jax.Array]:
        """Returns for each block ``[rows, requests]`` place of each request in what
        this device sent."""

    def group(self, rows: jax.Array, num_rows: int) -> RowGroups:
        """Groups the ids that a device received, by ``[received]`` int32 rows, or other
        numbers below ``num_rows``."""
        return group_rows(
            rows,
            num_rows,
            max_groups=self.rows,
            implementation=self.implementation,
        )

    def capacities_needed(
        self, ids: jax.Array, touched: RowGroups | None
    ) -> dict[str, jax.Array]:
        """Returns what a device needs of the storage's capacities.

        Args:
          ids: ``[]`` int32 most ids that the device sends to one other.
          touched: the ids that it received, by row; None where rows are cached. Where
            there is room for all that may come they are not counted, and the step need
            not wait for the groups.
        """
        name, rows = self.index.storage.name, jnp.int32(self.rows)
        if touched is None:
            return {name: ids}
        if self.rows < self.index.max_rows:
            rows = touched.needed[0]
        return {name: ids, rows_of(name): rows}

    def finish(self, route, largest):
        return route, largest

    def row_gradients(self, gradients, route):
        terms = self.gradient_terms(gradients, route)
        return RowGradients(route.touched.row, sum_up(terms, self.implementation))

    @jax.named_scope("gradients")
    def mean_square(self, rows, route):
        """Each owner returns its share of the sum to the requesters, along the route of
        the ids; they know all column shards of an id, add the shares up, and send the
        total to the owners."""
        if not self.index.storage.kind.split:
            return None
        gradient, group = rows.gradient, route.touched.group
        share = pick((gradient**2).sum(axis=1), group).reshape(route.request.shape)
        with jax.named_scope("square exchange"):
            returned = self.exchange.all_to_all(share).reshape(-1)
        means = []
        pairs = zip(self.index.blocks, self.sent_places(route), strict=True)
        for block, place in pairs:
            request_share = pick(returned, place)
            columns = add_columns(request_share, block.request_column, block.columns)
            means.append(columns[:, block.request_column] / block.request_dim[None])
        with jax.named_scope("square exchange"):
            mean = self.exchange.all_to_all(pick(flat(means), route.request)).reshape(
                -1
            )
        # Equal for all requests of a row, but zero for those nobody asked about.
        zeros = jnp.zeros(len(gradient), mean.dtype)
        return zeros.at[group].max(mean, mode="drop")


def weights_of_requests(
    index: StorageIndex, requests: list[Requests]
) -> list[jax.Array] | None:
    """Returns the weight of each request, ``[rows, requests]``, if there are any."""
    weights = [
        asked.weights[:, block.request_column]
        for block, asked in zip(index.blocks, requests, strict=True)
        if asked.weights is not None
    ]
    return weights or None


def flat(arrays: Sequence[jax.Array], *shape: int) -> jax.Array:
    """Joins the arrays of all blocks to one of ``[n, *shape]``."""
    return jnp.concatenate([array.reshape(-1, *shape) for array in arrays])


def unflat(joined: jax.Array, arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Inverts ``flat``: cuts ``[n]`` into arrays of these shapes."""
    before = np.cumsum([array.size for array in arrays])[:-1]
    cuts = zip(jnp.split(joined, before), arrays, strict=True)
    return [cut.reshape(array.shape) for cut, array in cuts]


def flat_weights(weights: Sequence[jax.Array] | None) -> jax.Array | None:
    """Joins the weights of all blocks, if there are any."""
    return None if weights is None else flat(weights)


def pick(values: jax.Array, index: jax.Array, fill: float = 0) -> jax.Array:
    """Returns ``values[index]``, with ``fill`` where the index is out of range."""
    return values.at[index].get(mode="fill", fill_value=fill)


def lookup_blocks(
    index: StorageIndex,
    rows: jax.Array,
    positions: list[jax.Array],
    weights: list[jax.Array] | None,
    dtype: DTypeLike,
    implementation: Implementation,
) -> list[jax.Array]:
    """Returns for each block of the index the weighted sums of its bags.

    Args:
      index: index of the storage.
      rows: ``[n, width]`` rows, or a device's block of the storage.
      positions: for each block ``[rows, requests]`` positions in ``rows``.
      weights: for each block the weight of each request; or None.
      dtype: that of the sums.
      implementation: kernels of the lookup.
    """
    return [
        pooled_lookup(
            rows,
            position,
            weight,
            hotness=block.hotness,
            dtype=dtype,
            implementation=implementation,
        )
        for block, position, weight in zip(
            index.blocks,
            positions,
            weights or [None] * len(index.blocks),
            strict=True,
        )
    ]


def sum_up(terms: GradientTerms, implementation: Implementation) -> jax.Array:
    """Returns ``[rows, width]`` sums that belong to ``terms.groups.row``."""
    groups, values, source, weight = terms
    return sum_groups(values, groups, source, weight, implementation=implementation)
