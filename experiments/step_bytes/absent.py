"""Compiles train steps for GPUs that this machine lacks.

This needs JAX's CUDA plugin (``pip install embark_jax[gpu-compile]``), but no GPU.
"""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import jax
import numpy as np
from embark_kernels import Implementation
from flax import nnx
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from embark_jax import models
from embark_jax._base.config import ConfigError
from embark_jax.config import DENSE_RULES, ROW_RULES, ModelConfig
from embark_jax.config.table_lists import experiment_of
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.planner import TableList
from embark_jax.planner.request.table_list import dense_optimizer_of
from embark_jax.plans.fleet import Fleet
from embark_jax.plans.plan import MESH_AXES, Plan
from embark_jax.run.optimizers import build_dense_optimizer, build_embedding_optimizer
from embark_jax.train.device_batch import abstract_batch, abstract_routes
from embark_jax.train.gradients import StepOptions
from embark_jax.train.state import Optimizers, TrainState, abstract_state
from embark_jax.train.step import make_train_step
from embark_jax.train.step_model import StepModel, step_model

TARGET = Path(__file__).parent / "h100.textproto"
"""Describes an H100 to XLA, and, but for its memory, an H200."""
LARGEST_INT32 = 2**31 - 1


def absent_mesh(fleet: Fleet, memory_bytes: float | None = None) -> Mesh:
    """A mesh of Hopper GPUs that this machine lacks.

    Args:
      fleet: gives the number of nodes, and of GPUs per node.
      memory_bytes: memory of each GPU; where it is short, XLA computes twice what it
        cannot keep. None means 80 GB.

    Raises:
      ConfigError: if JAX has no CUDA plugin here.
    """
    if importlib.util.find_spec("jax_cuda13_plugin") is None:
        raise ConfigError(
            "compiling for GPUs that this machine lacks needs JAX's CUDA plugin: "
            "pip install embark_jax[gpu-compile]"
        )
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
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


def compile_step(
    listed: TableList,
    plan: Plan,
    mesh: Mesh,
    optimizer: str,
    implementation: Implementation = "xla",
    compute_dtype: str = "bfloat16",
) -> tuple[jax.stages.Compiled, TrainState]:
    """The compiled train step of a table list's model, and the shapes of its state.

    Args:
      listed: a table list with dense layers.
      plan: the plan of its tables.
      mesh: the plan's mesh.
      optimizer: the row optimizer; the dense layers use the same rule.
      implementation: the implementation of lookups and updates.
      compute_dtype: dtype of the dense layers' matrix products.
    """
    collection = EmbeddingCollection(plan, mesh, implementation=implementation)
    described = experiment_of(listed)["model"] | {"compute_dtype": compute_dtype}
    config = ModelConfig.model_validate(described)
    assert listed.dense is not None
    features = listed.dense.features
    model = step_model(
        models.build(config, collection.output_shapes, features, nnx.Rngs(0))
    )
    dense = DENSE_RULES[dense_optimizer_of(optimizer)]()
    rows = ROW_RULES[optimizer]()
    optimizers = Optimizers(
        build_dense_optimizer(dense, steps=1),
        build_embedding_optimizer(rows, steps=1),
    )
    return compile_model(collection, model, optimizers, features)


def wide_features(plan: Plan) -> set[str]:
    """Features with ids beyond 32 bits."""
    large = {table.name for table in plan.tables if table.rows > LARGEST_INT32}
    return {f.name for f in plan.features if f.table in large}


def compile_model(
    collection: EmbeddingCollection,
    model: StepModel,
    optimizers: Optimizers,
    dense_features: int,
    *,
    options: StepOptions | None = None,
    wide: set[str] | None = None,
    compiler_options: dict | None = None,
) -> tuple[jax.stages.Compiled, TrainState]:
    """The compiled train step of a model, from shapes alone, and those of its state.

    Args:
      wide: features with 64-bit ids; None takes those that need them.
    """
    options = options or StepOptions()
    plan, mesh = collection.plan, collection.mesh
    wide = wide_features(plan) if wide is None else wide
    state = abstract_state(model, collection, optimizers, options.dense)
    step = make_train_step(model, collection, optimizers, state, options)
    with jax.enable_x64(bool(wide)):
        batch = abstract_batch(plan, mesh, dense_features, wide)
        lowered = step.lower(state, batch, abstract_routes(collection, batch), batch)
    return lowered.compile(compiler_options), state
