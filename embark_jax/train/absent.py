"""Compiles train steps for devices from shapes alone, also for GPUs that this machine
lacks.

The latter needs JAX's CUDA plugin (``pip install 'embark_jax[gpu-compile]'``), but no
GPU.
"""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from embark_jax._base.config import ConfigError
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.plans.fleet import Fleet
from embark_jax.plans.plan import MESH_AXES, Plan
from embark_jax.train.device_batch import abstract_batch, abstract_routes
from embark_jax.train.gradients import StepOptions
from embark_jax.train.state import Optimizers, TrainState, abstract_state
from embark_jax.train.step import make_train_step
from embark_jax.train.step_model import StepModel

TARGET = Path(__file__).parents[1] / "config_files" / "fleets" / "h100.textproto"
"""Describes an H100 to XLA, and, but for its memory, an H200."""
LARGEST_INT32 = 2**31 - 1


def allow_absent_gpus() -> None:
    """Lets JAX compile for GPUs that are not here; before it is used.

    Raises:
      ConfigError: if it has no CUDA plugin here.
    """
    if importlib.util.find_spec("jax_cuda13_plugin") is None:
        raise ConfigError(
            "compiling for GPUs that this machine lacks needs JAX's CUDA plugin: "
            "pip install 'embark_jax[gpu-compile]'"
        )
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    # Programs of GPUs that are not here cannot be read back (jax 0.10 to 0.12).
    jax.config.update("jax_enable_compilation_cache", False)


def absent_mesh(fleet: Fleet, memory_bytes: float | None = None) -> Mesh:
    """Returns a mesh of Hopper GPUs that this machine lacks.

    Args:
      fleet: gives the number of nodes, and of GPUs per node.
      memory_bytes: memory of each GPU; where it is short, XLA computes twice what it
        cannot keep. None means 80 GB.

    Raises:
      ConfigError: if JAX has no CUDA plugin here.
    """
    allow_absent_gpus()
    target = TARGET.read_text()
    if memory_bytes is not None:
        memory = f"device_memory_size: {int(memory_bytes)}"
        target = re.sub(r"device_memory_size: \d+", memory, target)
    topology = topologies.get_topology_desc(
        platform="cuda",
        target_config=target,
        topology=f"1x{fleet.nodes}x{fleet.gpus_per_node}",
    )
    devices = np.array(topology.devices).reshape(fleet.nodes, fleet.gpus_per_node)
    return Mesh(devices, MESH_AXES, axis_types=(AxisType.Auto,) * 2)


def wide_features(plan: Plan) -> set[str]:
    """Returns the features with ids beyond 32 bits."""
    large = {table.name for table in plan.tables if table.rows > LARGEST_INT32}
    return {f.name for f in plan.features if f.table in large}


def lower_model(
    collection: EmbeddingCollection,
    model: StepModel,
    optimizers: Optimizers,
    dense_features: int,
    *,
    options: StepOptions | None = None,
    wide: set[str] | None = None,
    tasks: int = 0,
) -> tuple[jax.stages.Lowered, TrainState]:
    """Returns the train step of a model, ready to be compiled, and the shapes of its
    state; nothing is allocated.

    Args:
      collection, model, optimizers, dense_features, options: as for training.
      wide: features with 64-bit ids; None takes those that need them.
      tasks: number of labels, if samples have several.
    """
    options = options or StepOptions()
    plan, mesh = collection.plan, collection.mesh
    wide = wide_features(plan) if wide is None else wide
    state = abstract_state(model, collection, optimizers, options.dense)
    step = make_train_step(model, collection, optimizers, state, options)
    with jax.enable_x64(bool(wide)):
        cuts = options.micro_batches
        batch = abstract_batch(plan, mesh, dense_features, wide, tasks, cuts)
        # Routes of cached tables are made outside of the step.
        following = None if collection.cached else batch
        routes = abstract_routes(collection, batch)
        return step.lower(state, batch, routes, following), state
