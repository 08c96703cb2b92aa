"""Compiles train steps of table lists for GPUs that this machine lacks."""

from __future__ import annotations

import jax
from embark_kernels import Implementation
from flax import nnx
from jax.sharding import Mesh

from embark_jax import models
from embark_jax.config import DENSE_RULES, ROW_RULES, ModelConfig
from embark_jax.config.table_lists import (
    TableList,
    dense_optimizer_of,
    experiment_of,
)
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.plans.plan import Plan
from embark_jax.run.optimizers import build_dense_optimizer, build_embedding_optimizer
from embark_jax.train.absent import lower_model
from embark_jax.train.state import Optimizers, TrainState
from embark_jax.train.step_model import step_model


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
    lowered, state = lower_model(collection, model, optimizers, features)
    return lowered.compile(), state
