"""Forward and backward of a batch: at once, or in micro-batches one after the other.

A micro-batch is an equal part of what each device holds of the batch, so that cutting
the batch moves nothing. Their losses are shares of the batch's mean, so their gradients
add up to the batch's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from embark_jax.embedding.collection import EmbeddingCollection, Routes, Storages
from embark_jax.planner import MESH_AXES, Plan


class DeviceBatch(NamedTuple):
    """A batch on the devices, sharded by samples; fields as in ``data.Batch``."""

    dense: jax.Array
    ids: Mapping[str, jax.Array]
    weights: Mapping[str, jax.Array]
    labels: jax.Array


def abstract_batch(
    plan: Plan, mesh: Mesh, dense_features: int, wide: Collection[str] = ()
) -> DeviceBatch:
    """Shapes and shardings of a batch; nothing is allocated.

    Args:
      plan: its features and batch size.
      mesh: of the plan.
      dense_features: columns of ``dense``.
      wide: features whose ids are int64, not int32.
    """
    by_sample = NamedSharding(mesh, PartitionSpec(MESH_AXES))

    def of(shape, dtype=jnp.float32) -> Any:
        shape = (plan.batch_size, *shape)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=by_sample)

    ids = {
        f.name: of((f.hotness,), jnp.int64 if f.name in wide else jnp.int32)
        for f in plan.features
    }
    weights = {f.name: of((f.hotness,)) for f in plan.features if f.weighted}
    return DeviceBatch(of((dense_features,)), ids, weights, of(()))


class Gradients(NamedTuple):
    """What backward gives.

    Attributes:
      loss: ``[]`` mean log loss of the batch.
      logits: ``[batch]`` in the order of the batch's samples.
      dense: of the loss by the model's parameters.
      embeddings: by each array that ``lookup`` returned; of several micro-batches along
        a first axis.
    """

    loss: jax.Array
    logits: jax.Array
    dense: Any
    embeddings: dict[str, jax.Array]


def route(
    collection: EmbeddingCollection, batch: DeviceBatch, micro_batches: int
) -> Routes:
    """Routes of the batch; of several micro-batches along a first axis."""
    if micro_batches == 1:
        return collection.route(batch.ids, batch.weights)
    parts = _cut(collection, batch, micro_batches)
    return lax.map(lambda part: collection.route(part.ids, part.weights), parts)


def gradients(
    losses_of: Callable[[Any, dict, DeviceBatch], tuple[jax.Array, jax.Array]],
    collection: EmbeddingCollection,
    params: Any,
    storages: Storages,
    routes: Routes,
    batch: DeviceBatch,
    micro_batches: int,
) -> Gradients:
    """Gradients of the mean loss.

    Args:
      losses_of: ``(params, embeddings, batch) -> (losses, logits)``, both ``[batch]``.
      collection: the embedding tables.
      params: of the dense model.
      storages: of the tables.
      routes: of ``route``.
      batch: all of it.
      micro_batches: that it is cut into.
    """
    samples = batch.labels.size

    def share_of(params, embeddings, part):
        losses, logits = losses_of(params, embeddings, part)
        return losses.sum() / samples, logits

    def of_part(part, routes):
        embeddings = collection.lookup(storages, routes)
        gradient_of = jax.value_and_grad(share_of, argnums=(0, 1), has_aux=True)
        (loss, logits), (dense, embedding) = gradient_of(params, embeddings, part)
        return Gradients(loss, logits, dense, embedding)

    if micro_batches == 1:
        return of_part(batch, routes)

    def add(sums, part):
        found = of_part(*part)
        sums = jax.tree.map(jnp.add, sums, (found.loss, found.dense))
        return sums, (found.logits, found.embeddings)

    nothing = jnp.zeros((), jnp.float32), jax.tree.map(jnp.zeros_like, params)
    parts = _cut(collection, batch, micro_batches), routes
    (loss, dense), (logits, embeddings) = lax.scan(add, nothing, parts)
    return Gradients(loss, _join(collection, logits), dense, embeddings)


def _cut(
    collection: EmbeddingCollection, batch: DeviceBatch, micro_batches: int
) -> DeviceBatch:
    """``[batch, …]`` to ``[micro_batches, batch / micro_batches, …]``."""

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
    """``[micro_batches, n]`` back to ``[batch]``."""
    return jax.shard_map(
        lambda part: part.reshape(-1),
        mesh=collection.mesh,
        in_specs=PartitionSpec(None, MESH_AXES),
        out_specs=PartitionSpec(MESH_AXES),
    )(parts)
