"""The shardings of the dense model's parameters and of their optimizer state.

Each kind consists of shardings alone: the step constrains its arrays to them, and XLA
finds the collectives.
"""

from __future__ import annotations

from typing import Any, get_args

import jax
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from embark_jax.plans.options import DenseParallelism
from embark_jax.plans.plan import MESH_AXES


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
            if split is not None and variable[...].shape[split] % devices == 0
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
