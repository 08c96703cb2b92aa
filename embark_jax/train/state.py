"""The state of a training: everything that a step changes, and how it lies on devices.

Each kind of dense parallelism consists of shardings alone: the step constrains its
arrays to them, and XLA finds the collectives.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, get_args

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from embark_jax._base.errors import UserError
from embark_jax.embedding.collection import (
    EmbeddingCollection,
    OptimizerState,
    Storages,
    TableState,
)
from embark_jax.embedding.rules import AnyRule
from embark_jax.plans.options import DenseParallelism
from embark_jax.plans.plan import MESH_AXES
from embark_jax.train.step_model import StepModel


class Optimizers(NamedTuple):
    """The optimizers of a step.

    Attributes:
      dense: optax optimizer of the dense parameters.
      rows: the rule for touched rows, or the rules of several tables.
    """

    dense: optax.GradientTransformation
    rows: AnyRule


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

    @property
    def tables(self) -> TableState:
        """Returns the embedding tables."""
        return TableState(self.storages, self.embedding_state)

    def with_tables(self, tables: TableState) -> TrainState:
        """Returns the state with other embedding tables."""
        return self._replace(storages=tables.storages, embedding_state=tables.optimizer)

    def without_halt(self) -> TrainState:
        """Returns the state without the halt, so that steps change something again."""
        halted = jax.device_put(jnp.zeros((), bool), self.halted.sharding)
        return self._replace(halted=halted)


def init_state(
    model: StepModel,
    collection: EmbeddingCollection,
    optimizers: Optimizers,
    key: jax.Array,
    dense: DenseParallelism = "replicated",
) -> TrainState:
    """Creates the state before the first step; each device creates its own part.

    Args:
      model: model whose variables are copied.
      collection: the embedding tables.
      optimizers: optimizers that the step will use.
      key: a JAX random key for the tables.
      dense: how the dense model lies on the devices.
    """
    shardings = state_shardings(model, collection, optimizers, dense)

    def placed(arrays, shardings):
        # device_put would gather them from all processes, to compare them.
        return jax.jit(lambda arrays: arrays, out_shardings=shardings)(arrays)

    params = placed(model.params, shardings.params)
    init_dense = jax.jit(optimizers.dense.init, out_shardings=shardings.dense_state)
    return TrainState(
        step=jax.device_put(jnp.zeros((), jnp.int32), shardings.step),
        halted=jax.device_put(jnp.zeros((), bool), shardings.halted),
        params=params,
        dense_state=init_dense(params),
        model_state=placed(model.state, shardings.model_state),
        storages=collection.init(key),
        embedding_state=collection.init_optimizer(optimizers.rows),
    )


def abstract_state(
    model: StepModel,
    collection: EmbeddingCollection,
    optimizers: Optimizers,
    dense: DenseParallelism = "replicated",
) -> TrainState:
    """Returns shapes and shardings of ``init_state``'s result; nothing is allocated.

    With them a step can be compiled for devices that are not there.
    """

    def create():
        return init_state(model, collection, optimizers, jax.random.key(0))

    return jax.tree.map(
        lambda shape, sharding: jax.ShapeDtypeStruct(
            shape.shape, shape.dtype, sharding=sharding
        ),
        jax.eval_shape(create),
        state_shardings(model, collection, optimizers, dense),
    )


def state_shardings(
    model: StepModel,
    collection: EmbeddingCollection,
    optimizers: Optimizers,
    dense: DenseParallelism,
) -> Any:
    """Returns the sharding of each array of a state, as it lies between steps."""
    mesh = collection.mesh
    replicated = NamedSharding(mesh, PartitionSpec())
    return TrainState._make(
        [
            replicated,
            replicated,
            param_shardings(dense, model.params, mesh),
            optimizer_shardings(
                optimizers.dense,
                jax.eval_shape(optimizers.dense.init, model.params),
                update_shardings(dense, model.params, mesh),
                mesh,
            ),
            jax.tree.map(lambda _: replicated, model.state),
            collection.shardings,
            collection.state_shardings(optimizers.rows),
        ]
    )


def param_shardings(kind: DenseParallelism, params: Any, mesh: Mesh) -> Any:
    """Returns the sharding of each parameter, as it lies between steps.

    Args:
      kind: kind of parallelism.
      params: ``nnx.state(model, nnx.Param)``, arrays or shapes.
      mesh: mesh of the devices.

    Raises:
      ValueError: if there is no such kind.
    """
    if kind not in get_args(DenseParallelism):
        kinds = ", ".join(get_args(DenseParallelism))
        raise ValueError(f"dense is {kind!r}, must be one of {kinds}")
    if kind != "tensor":
        return jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec()), params)
    variables, structure = _variables(params)
    devices = mesh.shape["gpu"]
    return structure.unflatten(
        NamedSharding(
            mesh,
            PartitionSpec(*[None] * split, "gpu")
            if split is not None and variable.get_value().shape[split] % devices == 0
            else PartitionSpec(),
        )
        for variable in variables
        for split in [_split(variable)]
    )


def update_shardings(kind: DenseParallelism, params: Any, mesh: Mesh) -> Any:
    """Returns the sharding in which each parameter is updated, and in which its
    optimizer state lies; arguments as in ``param_shardings``."""
    if kind != "zero1":
        return param_shardings(kind, params, mesh)

    def of(param):
        divisible = [n if n % mesh.size == 0 else 0 for n in param.shape]
        if not any(divisible):
            return NamedSharding(mesh, PartitionSpec())
        axis = divisible.index(max(divisible))
        return NamedSharding(mesh, PartitionSpec(*[None] * axis, MESH_AXES))

    return jax.tree.map(of, params)


def optimizer_shardings(
    optimizer: optax.GradientTransformation, state: Any, updated: Any, mesh: Mesh
) -> Any:
    """Returns the sharding of each array of an optimizer's state: its parameter's.

    Args:
      optimizer: optimizer of the parameters.
      state: state of this optimizer, arrays or shapes.
      updated: result of ``update_shardings``.
      mesh: mesh of the devices.
    """
    return optax.tree_map_params(
        optimizer,
        lambda _, sharding: sharding,
        state,
        updated,
        transform_non_params=lambda _: NamedSharding(mesh, PartitionSpec()),
    )


def sample_sharding(kind: DenseParallelism, mesh: Mesh) -> NamedSharding:
    """Returns the sharding of the model's inputs: over the devices that have samples of
    their own."""
    return NamedSharding(mesh, PartitionSpec("node" if kind == "tensor" else MESH_AXES))


def _split(variable: Any) -> int | None:
    """Returns the axis along which a parameter may be split, if its model names one."""
    is_flax = isinstance(variable, nnx.Variable)
    return variable.get_metadata().get("split") if is_flax else None


def _variables(params: Any) -> tuple[list[nnx.Variable], Any]:
    """Returns variables of one array each, and the structure with an array for each."""
    variables = jax.tree.leaves(
        params, is_leaf=lambda node: isinstance(node, nnx.Variable)
    )
    return variables, jax.tree.structure(params)


class StateLostError(UserError, RuntimeError):
    """The state of a trainer is gone: rows of it were overwritten by those of a
    checkpoint that turned out to be damaged."""


class Checkpoints(Protocol):
    """Anything that states are restored from, such as ``checkpoint.Checkpointer``."""

    def restore(
        self,
        state: TrainState,
        embeddings: EmbeddingCollection,
        step: int | None = None,
    ) -> tuple[TrainState, dict[str, int]]: ...
