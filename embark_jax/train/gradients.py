"""Forward and backward of a batch: at once, or in micro-batches one after the other.

A micro-batch is an equal part of each device's samples, so that cutting the batch moves
nothing. Losses of micro-batches are shares of the batch's mean, so their gradients add
up to the batch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from embark_jax.embedding.collection import EmbeddingCollection, Routes, Storages
from embark_jax.plans.plan import MESH_AXES
from embark_jax.train.device_batch import Columns


class Gradients(NamedTuple):
    """The result of backward.

    Attributes:
      loss: ``[]`` mean log loss of the batch.
      logits: ``[batch]`` or ``[batch, tasks]``, in the order of the batch's samples.
      model_state: state after the batch; each micro-batch starts from that of the one
        before.
      dense: gradients of the loss by the model's parameters.
      embeddings: gradients by each array that ``lookup`` returned; several
        micro-batches lie along a first axis.
    """

    loss: jax.Array
    logits: jax.Array
    model_state: Any
    dense: Any
    embeddings: dict[str, jax.Array]


@jax.named_scope("sort")
def route(
    collection: EmbeddingCollection, batch: Columns, micro_batches: int
) -> Routes:
    """Routes the batch; several micro-batches lie along a first axis of the result."""
    if micro_batches == 1:
        return collection.route(batch.ids, batch.weights)
    parts = _cut(collection, batch, micro_batches)
    return lax.map(lambda part: collection.route(part.ids, part.weights), parts)


def gradients(
    losses_of: Callable[..., tuple[jax.Array, jax.Array, Any]],
    collection: EmbeddingCollection,
    params: Any,
    model_state: Any,
    storages: Storages,
    routes: Routes,
    batch: Columns,
    micro_batches: int,
) -> Gradients:
    """Computes gradients of the mean loss.

    Args:
      losses_of: ``(params, model_state, embeddings, batch) -> (losses, logits,
        model_state)``; logits have the shape of the labels, and losses are ``[batch]``
        or their mean ``[]``.
      collection: the embedding tables.
      params: parameters of the dense model.
      model_state: the dense model's other variables.
      storages: storages of the tables.
      routes: result of ``route``.
      batch: the whole batch.
      micro_batches: number of parts that the batch is cut into.
    """
    samples = len(batch.labels)

    def share_of(params, embeddings, model_state, part):
        losses, logits, model_state = losses_of(params, model_state, embeddings, part)
        # A mean is over the micro-batch, which is as large as all others.
        loss = losses / micro_batches if losses.ndim == 0 else losses.sum() / samples
        return loss, (logits, model_state)

    def of_part(model_state, part, routes):
        embeddings = collection.lookup(storages, routes)
        gradient_of = jax.value_and_grad(share_of, argnums=(0, 1), has_aux=True)
        (loss, (logits, model_state)), (dense, embedding) = gradient_of(
            params, embeddings, model_state, part
        )
        return Gradients(loss, logits, model_state, dense, embedding)

    if micro_batches == 1:
        return of_part(model_state, batch, routes)

    def add(carried, part):
        sums, model_state = carried
        found = of_part(model_state, *part)
        sums = jax.tree.map(jnp.add, sums, (found.loss, found.dense))
        return (sums, found.model_state), (found.logits, found.embeddings)

    nothing = jnp.zeros((), jnp.float32), jax.tree.map(jnp.zeros_like, params)
    parts = _cut(collection, batch, micro_batches), routes
    ((loss, dense), model_state), (logits, embeddings) = lax.scan(
        add, (nothing, model_state), parts
    )
    logits = _join(collection, logits)
    return Gradients(loss, logits, model_state, dense, embeddings)


def _cut(
    collection: EmbeddingCollection, batch: Columns, micro_batches: int
) -> Columns:
    """Cuts ``[batch, …]`` into ``[micro_batches, batch / micro_batches, …]``."""

    def cut(part):
        return jax.tree.map(
            lambda each: each.reshape(micro_batches, -1, *each.shape[1:]), part
        )

    return jax.shard_map(
        cut,
        mesh=collection.mesh,
        in_specs=PartitionSpec(MESH_AXES),
        out_specs=PartitionSpec(None, MESH_AXES),
    )(batch)


def _join(collection: EmbeddingCollection, parts: jax.Array) -> jax.Array:
    """Joins ``[micro_batches, n, …]`` back to ``[batch, …]``."""
    return jax.shard_map(
        lambda part: part.reshape(-1, *part.shape[2:]),
        mesh=collection.mesh,
        in_specs=PartitionSpec(None, MESH_AXES),
        out_specs=PartitionSpec(MESH_AXES),
    )(parts)
