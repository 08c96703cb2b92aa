"""The state of a training: everything that a step changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

from embark_jax.embedding.collection import (
    EmbeddingCollection,
    OptimizerState,
    Storages,
)
from embark_jax.embedding.rules import AnyRule
from embark_jax.plans.options import DenseParallelism
from embark_jax.train.dense_parallelism import (
    optimizer_shardings,
    param_shardings,
    update_shardings,
)
from embark_jax.train.function_model import StepModel


class TrainState(NamedTuple):
    """Everything a step changes; donated to it.

    Attributes:
      step: ``[]`` int32 steps applied so far.
      halted: ``[]`` bool; once set, steps change nothing until the loop clears it, so
        that steps already in flight behind a refused one wait for its replay.
      params: parameters of the dense model, float32.
      dense_state: state of the dense optimizer.
      model_state: all other variables of the model, such as running statistics and
        random streams.
      storages: storages of the embedding tables.
      embedding_state: state of the embedding optimizer.
    """

    step: jax.Array
    halted: jax.Array
    params: Any
    dense_state: Any
    model_state: Any
    storages: Storages
    embedding_state: OptimizerState


def init_state(
    model: StepModel,
    collection: EmbeddingCollection,
    dense_optimizer: optax.GradientTransformation,
    embedding_optimizer: AnyRule,
    key: jax.Array,
    dense: DenseParallelism = "replicated",
) -> TrainState:
    """Creates the state before the first step; each device creates its own part.

    Args:
      model: model whose variables are copied.
      collection: the embedding tables.
      dense_optimizer, embedding_optimizer: optimizers that the step will use.
      key: a JAX random key for the tables.
      dense: how the dense model lies on the devices.
    """
    replicated = NamedSharding(collection.mesh, PartitionSpec())
    lie, state_lies = _dense_shardings(model.params, collection, dense_optimizer, dense)

    def placed(arrays, shardings):
        # device_put would gather them from all processes, to compare them.
        return jax.jit(lambda arrays: arrays, out_shardings=shardings)(arrays)

    params = placed(model.params, lie)
    return TrainState(
        step=jax.device_put(jnp.zeros((), jnp.int32), replicated),
        halted=jax.device_put(jnp.zeros((), bool), replicated),
        params=params,
        dense_state=jax.jit(dense_optimizer.init, out_shardings=state_lies)(params),
        model_state=placed(model.state, replicated),
        storages=collection.init(key),
        embedding_state=collection.init_optimizer(embedding_optimizer),
    )


def clear_halt(state: TrainState) -> TrainState:
    """Returns the state without the halt, so that steps change something again."""
    halted = jax.device_put(jnp.zeros((), bool), state.halted.sharding)
    return state._replace(halted=halted)


def abstract_state(
    model: StepModel,
    collection: EmbeddingCollection,
    dense_optimizer: optax.GradientTransformation,
    embedding_optimizer: AnyRule,
    dense: DenseParallelism = "replicated",
) -> TrainState:
    """Returns shapes and shardings of ``init_state``'s result; nothing is allocated.

    With them a step can be compiled for devices that are not there.
    """

    def create():
        key = jax.random.key(0)
        return init_state(model, collection, dense_optimizer, embedding_optimizer, key)

    shapes = jax.eval_shape(create)
    replicated = NamedSharding(collection.mesh, PartitionSpec())
    shardings = TrainState._make(
        [
            replicated,
            replicated,
            *_dense_shardings(shapes.params, collection, dense_optimizer, dense),
            jax.tree.map(lambda _: replicated, shapes.model_state),
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
    """Returns the shardings of the parameters and of their optimizer's state."""
    mesh = collection.mesh
    updated = update_shardings(dense, params, mesh)
    state = jax.eval_shape(optimizer.init, params)
    return (
        param_shardings(dense, params, mesh),
        optimizer_shardings(optimizer, state, updated, mesh),
    )


class Checkpoints(Protocol):
    """Anything that states are restored from, such as ``checkpoint.Checkpointer``."""

    def restore(
        self,
        state: TrainState,
        embeddings: EmbeddingCollection,
        step: int | None = None,
        make_room: Callable[[Mapping[str, int]], tuple[TrainState, EmbeddingCollection]]
        | None = None,
    ) -> tuple[TrainState, dict[str, int]]: ...
