"""The train step: forward, backward, exchange and all updates in one XLA program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from embark_kernels import RowOptimizer
from flax import nnx
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from embark_jax.embedding.collection import (
    EmbeddingCollection,
    OptimizerState,
    Storages,
)
from embark_jax.train.dense_parallelism import (
    DenseParallelism,
    optimizer_shardings,
    param_shardings,
    sample_sharding,
    update_shardings,
)
from embark_jax.train.gradients import DeviceBatch, gradients, route


class TrainState(NamedTuple):
    """Everything a step changes; donated to it.

    Attributes:
      step: ``[]`` int32 steps applied so far.
      halted: ``[]`` bool; once set, steps change nothing until the loop clears it, so
        that steps already in flight behind a refused one wait for its replay.
      params: of the dense model, float32.
      dense_state: of the dense optimizer.
      storages: of the embedding tables.
      embedding_state: of the embedding optimizer.
    """

    step: jax.Array
    halted: jax.Array
    params: Any
    dense_state: Any
    storages: Storages
    embedding_state: OptimizerState


class StepReport(NamedTuple):
    """What a step tells the loop.

    Attributes:
      applied: ``[]`` bool whether the step changed the state.
      loss: ``[]`` mean log loss of the batch, before the update.
      needed: for each sharded storage the ``[]`` capacity that the batch needs.
      logits: ``[batch]`` before the update, sharded.
    """

    applied: jax.Array
    loss: jax.Array
    needed: dict[str, jax.Array]
    logits: jax.Array


def init_state(
    model: nnx.Module,
    collection: EmbeddingCollection,
    dense_optimizer: optax.GradientTransformation,
    embedding_optimizer: RowOptimizer,
    key: jax.Array,
    dense: DenseParallelism = "replicated",
) -> TrainState:
    """The state before the first step; each device creates its own part.

    Args:
      model: its parameters are taken over.
      collection: the embedding tables.
      dense_optimizer, embedding_optimizer: what the step will use.
      key: a JAX random key for the tables.
      dense: how the dense model lies on the devices.
    """
    replicated = NamedSharding(collection.mesh, PartitionSpec())
    params = nnx.state(model, nnx.Param)
    lie, state_lies = _dense_shardings(params, collection, dense_optimizer, dense)
    # device_put would gather them from all processes, to compare them.
    params = jax.jit(lambda params: params, out_shardings=lie)(params)
    return TrainState(
        step=jax.device_put(jnp.zeros((), jnp.int32), replicated),
        halted=jax.device_put(jnp.zeros((), bool), replicated),
        params=params,
        dense_state=jax.jit(dense_optimizer.init, out_shardings=state_lies)(params),
        storages=collection.init(key),
        embedding_state=collection.init_optimizer(embedding_optimizer),
    )


def abstract_state(
    model: nnx.Module,
    collection: EmbeddingCollection,
    dense_optimizer: optax.GradientTransformation,
    embedding_optimizer: RowOptimizer,
    dense: DenseParallelism = "replicated",
) -> TrainState:
    """Shapes and shardings of ``init_state``'s result; nothing is allocated.

    With it a step can be compiled for devices that are not there.
    """

    def create():
        key = jax.random.key(0)
        return init_state(model, collection, dense_optimizer, embedding_optimizer, key)

    shapes = jax.eval_shape(create)
    replicated = NamedSharding(collection.mesh, PartitionSpec())
    shardings = TrainState._make(
        [
            *(replicated, replicated),
            *_dense_shardings(shapes.params, collection, dense_optimizer, dense),
            collection.shardings,
            collection.state_shardings(embedding_optimizer),
        ]
    )
    return jax.tree.map(
        lambda shape, sharding: jax.ShapeDtypeStruct(
            shape.shape, shape.dtype, sharding=sharding
        ),
        shapes,
        shardings,
    )


def _dense_shardings(
    params: Any,
    collection: EmbeddingCollection,
    optimizer: optax.GradientTransformation,
    dense: DenseParallelism,
) -> tuple[Any, Any]:
    """Of the parameters, and of their optimizer's state."""
    mesh = collection.mesh
    updated = update_shardings(dense, params, mesh)
    state = jax.eval_shape(optimizer.init, params)
    return (
        param_shardings(dense, params, mesh),
        optimizer_shardings(optimizer, state, updated, mesh),
    )


def make_train_step(
    model: nnx.Module,
    collection: EmbeddingCollection,
    dense_optimizer: optax.GradientTransformation,
    embedding_optimizer: RowOptimizer,
    state: TrainState,
    micro_batches: int = 1,
    dense: DenseParallelism = "replicated",
    overlap: bool = False,
) -> Callable:
    """The jitted step ``(state, batch) -> (state, report)``; its state is donated.

    A step is applied as a whole or not at all: not if the batch overflows a capacity
    (ids would be missing), nor if the loss or an update is not finite, nor while
    halted.

    Args:
      model: called as ``model(dense, embeddings) -> logits``.
      collection: the embedding tables.
      dense_optimizer: an optax optimizer of the dense parameters.
      embedding_optimizer: the rule for touched rows.
      state: of ``init_state`` or ``abstract_state``.
      micro_batches: parts of a batch that go through the model one after the other;
        the collection's plan is for one of them.
      dense: how the dense model lies on the devices, as in ``state``.
      overlap: the step is ``(state, batch, routes, following) -> (state, report,
        routes of following)``; the routes it is given are donated, too.
    """
    graph, _, rest = nnx.split(model, nnx.Param, ...)
    updated = update_shardings(dense, state.params, collection.mesh)
    by_sample = sample_sharding(dense, collection.mesh)

    def losses_of(params, embeddings, batch):
        inputs = batch.dense, embeddings
        inputs = lax.with_sharding_constraint(inputs, by_sample)
        logits = nnx.merge(graph, params, rest)(*inputs)
        logits, labels = lax.with_sharding_constraint((logits, batch.labels), by_sample)
        return optax.sigmoid_binary_cross_entropy(logits, labels), logits

    def apply_batch(state, batch, routes):
        found = gradients(
            losses_of,
            collection,
            state.params,
            state.storages,
            routes,
            batch,
            micro_batches,
        )
        gradient, params = lax.with_sharding_constraint(
            (found.dense, state.params), (updated, updated)
        )
        updates, dense_state = dense_optimizer.update(
            gradient, state.dense_state, params
        )
        params = optax.apply_updates(params, updates)

        # Optimizers of rows accumulate squares.
        squares = jax.tree.map(jnp.square, found.embeddings)
        finite = _all_finite((found.loss, squares, params, dense_state))
        applied = collection.fits(routes) & finite & ~state.halted

        def choose(new, old):
            return jnp.where(applied, new, old)

        step = state.step + 1
        storages, embedding_state = collection.update(
            state.storages,
            state.embedding_state,
            routes,
            found.embeddings,
            embedding_optimizer,
            step,
            applied,
            micro_batches,
        )
        new_state = TrainState(
            step=choose(step, state.step),
            halted=~applied,
            params=jax.tree.map(choose, params, state.params),
            dense_state=jax.tree.map(choose, dense_state, state.dense_state),
            storages=storages,
            embedding_state=embedding_state,
        )
        needed = collection.needed(routes)
        return new_state, StepReport(applied, found.loss, needed, found.logits)

    def train_step(state, batch):
        routes = route(collection, batch, micro_batches)
        # As opaque as routes that were made a step ahead, so that both ways compile to
        # the same arithmetic.
        return apply_batch(state, batch, lax.optimization_barrier(routes))

    def overlapped_step(state, batch, routes, following):
        state, report = apply_batch(state, batch, routes)
        return state, report, route(collection, following, micro_batches)

    by_batch = NamedSharding(collection.mesh, PartitionSpec(collection.mesh.axis_names))
    replicated = NamedSharding(collection.mesh, PartitionSpec())
    report = StepReport._make([replicated, replicated, replicated, by_batch])
    out_shardings = jax.tree.map(lambda each: each.sharding, state), report
    if overlap:
        return jax.jit(
            overlapped_step, out_shardings=(*out_shardings, None), donate_argnums=(0, 2)
        )
    return jax.jit(train_step, out_shardings=out_shardings, donate_argnums=0)


def _all_finite(arrays: Any) -> jax.Array:
    leaves = jax.tree.leaves(arrays)
    return jnp.all(jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]))


def make_predict_step(
    model: nnx.Module, collection: EmbeddingCollection
) -> Callable[[Any, Storages, DeviceBatch], tuple[jax.Array, dict[str, jax.Array]]]:
    """A jitted ``(params, storages, batch) -> (logits [batch], needed capacities)``."""
    graph, _, rest = nnx.split(model, nnx.Param, ...)

    def predict(params, storages, batch):
        routes = collection.route(batch.ids, batch.weights)
        embeddings = collection.lookup(storages, routes)
        logits = nnx.merge(graph, params, rest)(batch.dense, embeddings)
        return logits, collection.needed(routes)

    return jax.jit(predict)
