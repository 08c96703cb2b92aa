"""Compiles DLRMv4's train step for H200s that are not there, and prints what the
compiler says beside the plan.

    python -m experiments.yambda.compile [NODES [SAMPLES_A_GPU [LONGEST]]]

Needs `pip install -e .[gpu-compile]`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time

import jax
from flax import nnx

from embark_jax import models, planner
from embark_jax.config import EmbeddingOptimizerConfig
from embark_jax.config.models import DLRMv4Config
from embark_jax.config.optimizers import DenseOptimizerConfig
from embark_jax.data.prepare.yambda_files import Yambda
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.device_batch import abstract_batch
from embark_jax.plans.fleet import dgx_h200
from embark_jax.plans.wire import Wire
from embark_jax.train.gradients import StepOptions
from embark_jax.train.optimizers import (
    Optimizers,
    build_dense_optimizer,
    build_embedding_optimizer,
)
from embark_jax.train.state import abstract_state
from embark_jax.train.step import make_train_step
from embark_jax.train.step_model import step_model
from experiments.compile_at_scale.compile import compiled_traffic
from experiments.compile_at_scale.program import collectives
from experiments.step_bytes.absent import absent_mesh
from experiments.yambda import skew
from experiments.yambda.run import LIST, statistics_of

DENSE_FEATURES = 4
SAMPLES_AT_ONCE = 16
"""Of a device."""


def compile_for(nodes: int, samples: int, longest: int) -> dict:
    """Plans and compiles."""
    fleet = dgx_h200(nodes)
    wire = Wire(rows="float16", gradients="float16")
    mean = round(longest * 2663 / 4086)
    text = LIST.read_text().replace("4086", str(longest)).replace("2663", str(mean))
    listed = planner.read_table_list(text)
    workload = listed.workload(fleet, samples * fleet.devices, overlap=False)
    statistics = statistics_of(next(skew.steps(Yambda(), 1)))
    if longest == skew.LONGEST:
        workload = dataclasses.replace(workload, statistics=statistics)
    workload = dataclasses.replace(workload, wire=wire)
    tables, features = listed.specs()
    features = [
        feature if feature.hotness > 1 else dataclasses.replace(feature, pooling="sum")
        for feature in features
    ]
    plan = planner.plan_for(workload, tables, features)
    mesh = absent_mesh(fleet, fleet.device.memory_bytes)
    collection = EmbeddingCollection(plan, mesh, wire=wire, implementation="xla")
    names = [f"{name}_id" for name in skew.TABLES]
    config = DLRMv4Config(
        history={f"{name}_0": f"{name}_1" for name in names},
        content="item_id_0",
        width=512,
        hidden=256,
        head_dim=128,
        deep=512,
        samples_at_once=SAMPLES_AT_ONCE * fleet.devices,
        compute_dtype="bfloat16",
        input_dropout=0.2,
        dropout=0.1,
    )
    shapes = collection.output_shapes
    model = step_model(models.build(config, shapes, DENSE_FEATURES, nnx.Rngs(0)))
    optimizers = Optimizers(
        build_dense_optimizer(DenseOptimizerConfig(kind="adam"), steps=1),
        build_embedding_optimizer(EmbeddingOptimizerConfig(), steps=1),
    )
    state = abstract_state(model, collection, optimizers)
    step = make_train_step(model, collection, optimizers, state, StepOptions())
    batch = abstract_batch(plan, mesh, DENSE_FEATURES, set())
    start = time.perf_counter()
    compiled = step.lower(state, batch, None, None).compile()
    memory = compiled.memory_analysis()
    assert plan.prediction is not None
    return {
        "devices": fleet.devices,
        "longest": longest,
        "samples": samples,
        "compile_s": time.perf_counter() - start,
        "arguments_bytes": memory.argument_size_in_bytes,
        "temporaries_bytes": memory.temp_size_in_bytes,
        "planned_bytes": max(plan.prediction.device_bytes),
        "program": compiled_traffic(
            collectives(compiled.as_text()), fleet.gpus_per_node
        ),
    }


if __name__ == "__main__":
    sizes = [1, skew.BATCH, skew.LONGEST]
    sizes[: len(sys.argv) - 1] = map(int, sys.argv[1:])
    with jax.numpy_dtype_promotion("standard"):
        print(json.dumps(compile_for(*sizes)))
