"""The devices that a collection of tables can lie on."""

from __future__ import annotations

import jax
from jax.sharding import Mesh

from embark_jax.plans.plan import MESH_AXES, Plan


def has_gpus(mesh: Mesh) -> bool:
    """Whether the devices of a mesh are GPUs."""
    return mesh.devices.flat[0].platform == "gpu"


def check_mesh(plan: Plan, mesh: Mesh) -> None:
    """Raises ``ValueError`` if mesh and plan disagree, or JAX is set to 64 bits."""
    if jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError(
            "JAX is set to 64 bits (JAX_ENABLE_X64 or jax_enable_x64), in which rows, "
            "gradients and sums, which are float32 here, would become float64: unset "
            "it. Ids may have 64 bits without it"
        )
    needed = plan.nodes, plan.gpus_per_node
    if mesh.axis_names != MESH_AXES or mesh.devices.shape != needed:
        raise ValueError(
            f"mesh is {dict(mesh.shape)}, the plan needs "
            f"{dict(zip(MESH_AXES, needed, strict=True))}"
        )
