"""A batch in micro-batches, and its routes.

A micro-batch is an equal share of each device's samples, so that cutting a batch moves
nothing.
"""

from __future__ import annotations

import jax
from jax import lax

from embark_jax.embedding.arrays import BATCH, MICRO_BATCHES, Routes
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.device_batch import Columns, DeviceBatch


@jax.named_scope("sort")
def route_batch(
    collection: EmbeddingCollection, batch: DeviceBatch, micro_batches: int = 1
) -> Routes:
    """Routes a batch, under jit; several micro-batches lie along a first axis of the
    result."""
    columns = batch.columns()
    if micro_batches == 1:
        return collection.route(columns.ids, columns.weights)
    return lax.map(
        lambda cut: collection.route(cut.ids, cut.weights),
        cut_batch(collection, columns, micro_batches),
    )


def cut_batch(
    collection: EmbeddingCollection, batch: Columns, micro_batches: int
) -> Columns:
    """Cuts ``[batch, …]`` into ``[micro_batches, batch / micro_batches, …]``."""

    def cut(samples):
        return jax.tree.map(
            lambda column: column.reshape(micro_batches, -1, *column.shape[1:]), samples
        )

    return jax.shard_map(
        cut, mesh=collection.mesh, in_specs=BATCH, out_specs=MICRO_BATCHES
    )(batch)


def join_batch(collection: EmbeddingCollection, values: jax.Array) -> jax.Array:
    """Joins ``[micro_batches, n, …]`` back to ``[batch, …]``."""
    return jax.shard_map(
        lambda cut: cut.reshape(-1, *cut.shape[2:]),
        mesh=collection.mesh,
        in_specs=MICRO_BATCHES,
        out_specs=BATCH,
    )(values)
