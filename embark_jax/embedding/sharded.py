"""Functions that clusters share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from embark_kernels import Implementation, RowGroups, sum_groups

from embark_jax.embedding.cluster import Summands
from embark_jax.embedding.exchange import Exchange
from embark_jax.embedding.indexing import StorageIndex


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
