"""The interface that the three clusters share and the collection composes, and some
functions that they share.

All methods run on one device, inside ``shard_map``. ``batch`` is the device's share of
the global batch; ``outputs`` and ``requests`` are those of the storage's index.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from embark_kernels import Implementation, RowGroups, sum_groups

from embark_jax.embedding.bags import Requests
from embark_jax.embedding.exchange import Exchange
from embark_jax.embedding.indexing import StorageIndex

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


class Summands(NamedTuple):
    """The summands of a device's row gradients, as ``sum_groups`` takes them.

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


class Cluster(Protocol):
    """A way to move rows: DataParallel, ReductionBased or UniqueBased.

    Args:
      index: index of the storage.
      exchange: exchange of ids, rows and gradients; DP needs none.
      batch: samples of a device.
      capacity: number of ids that a device can send to one other; DP sends none.
      wire: formats in which rows and gradients travel.
      implementation: kernels of lookups and sums.
    """

    index: StorageIndex
    implementation: Implementation

    def route(self, requests: Requests) -> tuple[Route, jax.Array]:
        """Finds where each id goes, and int32 values of which the step needs the
        largest over all devices: the ``[]`` capacity that the route needs here, or in
        DP what ``finish`` takes."""
        ...

    def finish(self, route: Route, largest: jax.Array) -> Route:
        """Returns the route once the values of all devices are known.

        Args:
          route: first result of ``route``.
          largest: maximum over all devices of the second result of ``route``.
        """
        ...

    def touched(self, route: Route) -> jax.Array:
        """Returns the ``[rows]`` slots of ``row_gradients``."""
        ...

    def lookup(self, block: jax.Array, route: Route) -> jax.Array:
        """Returns weighted sums of each bag's rows, ``[batch, outputs, width]``."""
        ...

    def summands(self, gradients: jax.Array, route: Route) -> Summands | None:
        """Returns what ``row_gradients`` sums; None if other devices add to it."""
        ...

    def row_gradients(self, gradients: jax.Array, route: Route) -> RowGradients:
        """Turns gradients of ``lookup``'s result into those of this device's rows."""
        ...

    def mean_square(self, rows: RowGradients, route: Route) -> jax.Array | None:
        """Returns ``[rows]``: the mean of gradient² over the whole row, all column
        shards; None where this device has whole rows."""
        ...


class ShardedCluster(Cluster, Protocol):
    """A cluster whose rows may be cached: ReductionBased or UniqueBased.

    Its routes have ``keys``: of a dynamic table the ``[rows, 2]`` keys of ``touched``,
    which are ranks below ``cells``; else None.
    """

    cells: int

    def with_slots(
        self, route: Route, slot: jax.Array, updated_slot: jax.Array
    ) -> Route:
        """Returns the route with slots in place of those of ``touched``, ``[rows]``: in
        lookups, and in updates. A slot is out of range where that is; one to update
        also where its row should not change."""
        ...


def weights_of_requests(index: StorageIndex, requests: Requests) -> jax.Array | None:
    """Returns the weight of each request, ``[batch, requests]``, if there are any."""
    if requests.weights is None:
        return None
    return requests.weights[:, index.request_column]


def pick(values: jax.Array, index: jax.Array, fill: float = 0) -> jax.Array:
    """Returns ``values[index]``, with ``fill`` where the index is out of range."""
    return values.at[index].get(mode="fill", fill_value=fill)


def sum_up(summands: Summands, implementation: Implementation) -> jax.Array:
    """Returns ``[rows, width]`` sums that belong to ``summands.groups.row``."""
    groups, values, source, weight = summands
    return sum_groups(values, groups, source, weight, implementation=implementation)


@jax.named_scope("gradients")
def mean_square_over_column_shards(
    index: StorageIndex,
    exchange: Exchange,
    gradient: jax.Array,
    touched: RowGroups,
    sent_request: jax.Array,
    inverse: jax.Array,
) -> jax.Array:
    """Finds the mean of gradient² of rows whose column shards lie on several devices.

    Each owner returns its share of the sum to the requesters, along the route of the
    ids; they know all column shards of an id, add the shares up, and send the total to
    the owners.

    Args:
      index, exchange: index and exchange of the storage.
      gradient: ``[rows, width]`` summed row gradients of this device.
      touched: the rows, grouped from what this device received.
      sent_request: ``[devices, capacity]`` request of this device behind each cell it
        sent.
      inverse: ``[batch * requests]`` cell of each request in what this device sent.

    Returns:
      The mean of each row, ``[rows]``.
    """
    share = pick((gradient**2).sum(axis=1), touched.group).reshape(sent_request.shape)
    with jax.named_scope("square exchange"):
        returned = exchange.swap(share).reshape(-1)
    request_share = pick(returned, inverse).reshape(-1, index.requests)
    columns = jnp.zeros((request_share.shape[0], index.columns), request_share.dtype)
    columns = columns.at[:, index.request_column].add(request_share)
    dim = index.output_dim[index.request_output][None]
    request_mean = (columns[:, index.request_column] / dim).reshape(-1)
    with jax.named_scope("square exchange"):
        mean = exchange.swap(pick(request_mean, sent_request)).reshape(-1)
    # Equal for all requests of a row, but zero for those nobody asked about.
    rows = jnp.zeros(gradient.shape[0], mean.dtype)
    return rows.at[touched.group].max(mean, mode="drop")
