"""Models and abstract batches for tests that compile steps."""

from __future__ import annotations

import dataclasses
import math

import jax
import optax
from embark_kernels import RowOptimizer
from flax import nnx
from jax.sharding import Mesh

from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.models import DLRMDCNv2
from embark_jax.planner import Plan
from embark_jax.train.device_batch import DeviceBatch, abstract_batch
from embark_jax.train.flax_model import FlaxModel
from embark_jax.train.gradients import route
from embark_jax.train.step import abstract_state, make_train_step

DENSE_FEATURES = 13

# MLPerf DLRM-DCNv2: https://github.com/mlcommons/training, recommendation_v2
MLPERF_ROWS = (
    *(40_000_000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40_000_000, 3067956),
    *(405282, 10, 2209, 11938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000),
    *(590152, 12973, 108, 36),
)
MLPERF_HOTNESS = (
    *(3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1),
    1,
)


def compile_step(
    plan: Plan,
    mesh: Mesh,
    optimizer: RowOptimizer,
    *,
    bottom,
    top,
    rank: int,
    ragged: bool = False,
    overlap: bool = False,
    micro_batches: int = 1,
    implementation: str = "xla",
):
    """The compiled train step of DLRM-DCNv2, from shapes alone; the plan is for one of
    its micro-batches."""
    collection = EmbeddingCollection(
        plan, mesh, ragged=ragged, implementation=implementation
    )
    model = DLRMDCNv2(
        collection.output_shapes,
        DENSE_FEATURES,
        bottom=bottom,
        top=top,
        cross_layers=3,
        cross_rank=rank,
        compute_dtype="float32",
        rngs=nnx.Rngs(0),
    )
    model, dense_optimizer = FlaxModel(model), optax.adagrad(0.01)
    state = abstract_state(model, collection, dense_optimizer, optimizer)
    step = make_train_step(
        *(model, collection, dense_optimizer, optimizer, state),
        micro_batches=micro_batches,
        next_collection=collection if overlap else None,
    )
    whole = dataclasses.replace(plan, batch_size=plan.batch_size * micro_batches)
    batch = abstract_batch(whole, mesh, DENSE_FEATURES)
    batches = (batch,)
    if overlap:
        batches = (batch, abstract_routes(collection, batch), batch)
    return step.lower(state, *batches).compile(), state


def abstract_routes(collection: EmbeddingCollection, batch: DeviceBatch):
    """Shapes and shardings of the routes of a batch."""
    make = jax.jit(lambda batch: route(collection, batch.columns(), 1))
    lowered = make.lower(batch)
    return jax.tree.map(
        lambda each, sharding: jax.ShapeDtypeStruct(
            each.shape, each.dtype, sharding=sharding
        ),
        lowered.out_info,
        lowered.compile().output_shardings,
    )


def bytes_per_device(arrays) -> int:
    """Of a pytree of sharded arrays or their shapes, on one device."""
    return sum(
        leaf.dtype.itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape))
        for leaf in jax.tree.leaves(arrays)
    )
