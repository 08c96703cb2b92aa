"""Compiles DLRMv4's train step for GPUs that are not there, and compares the program
with the plan; without arguments at full size, into compiled.json.

    python -m experiments.yambda.compile
    python -m experiments.yambda.compile FLEET NODES [MICRO_BATCHES [SAMPLES [LONGEST]]]

SAMPLES are those of a GPU. Needs `pip install -e .[gpu-compile]`; a program takes two
minutes on two cores.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
from flax import nnx

from embark_jax import models, planner
from embark_jax.config import EmbeddingOptimizerConfig
from embark_jax.config.models import DLRMv4Config
from embark_jax.config.optimizers import DenseOptimizerConfig
from embark_jax.data.prepare.yambda_files import Yambda
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.device_batch import abstract_batch
from embark_jax.planner import Workload
from embark_jax.planner.request.dense import DenseLoad, activation_bytes
from embark_jax.plans import fleet
from embark_jax.plans.plan import Plan
from embark_jax.plans.tables import (
    FeatureSpec,
    TableSpec,
    embedding_shapes,
    embedding_width,
)
from embark_jax.plans.wire import Wire
from embark_jax.train.gradients import StepOptions
from embark_jax.train.optimizers import (
    Optimizers,
    build_dense_optimizer,
    build_embedding_optimizer,
)
from embark_jax.train.state import TrainState, abstract_state
from embark_jax.train.step import make_train_step
from embark_jax.train.step_model import step_model
from experiments.compile_at_scale.compile import compiled_traffic, planned_traffic
from experiments.compile_at_scale.program import collectives
from experiments.step_bytes.absent import absent_mesh, abstract_routes
from experiments.yambda import skew
from experiments.yambda.priced import dense_bytes, dense_flops
from experiments.yambda.run import LIST, statistics_of

HERE = Path(__file__).parent
DENSE_FEATURES = 4
SAMPLES_AT_ONCE = 8
"""Of a device."""
CASES = (
    ("dgx-h200", 1, 4),
    ("dgx-h200", 2, 1),
    ("dgx-h200", 4, 1),
    ("dgx-h100", 1, 4),
    ("dgx-h100", 2, 4),
    ("dgx-h100", 4, 4),
)
"""Fleets, nodes of eight GPUs, and micro-batches of a step."""
TIERED = ("dgx-h100",)
"""Fleets on which large tables may lie in host memory, with slots on the GPUs."""
ARRAY = re.compile(r"\w\[([\d,]+)\]")


class Request(NamedTuple):
    """What is planned: the workload of one micro-batch, tables, features, and the
    config of the model."""

    workload: Workload
    tables: Sequence[TableSpec]
    features: Sequence[FeatureSpec]
    model: DLRMv4Config


def request(
    name: str, nodes: int, micro_batches: int, samples: int, longest: int
) -> Request:
    """Describes DLRMv4 on a fleet; see ``case``."""
    machines = fleet.load(name, nodes)
    mean = round(longest * 2663 / 4086)
    text = LIST.read_text().replace("4086", str(longest)).replace("2663", str(mean))
    listed = planner.read_table_list(text)
    tables, features = listed.specs()
    features = [
        feature if feature.hotness > 1 else dataclasses.replace(feature, pooling="sum")
        for feature in features
    ]
    if name in TIERED:
        tables = [
            dataclasses.replace(table, tier="auto") if "_x_" in table.name else table
            for table in tables
        ]
    names = [f"{name}_id" for name in skew.TABLES]
    model = DLRMv4Config(
        history={f"{name}_0": f"{name}_1" for name in names},
        content="item_id_0",
        width=512,
        hidden=256,
        head_dim=128,
        deep=512,
        samples_at_once=SAMPLES_AT_ONCE * machines.devices,
        compute_dtype="bfloat16",
        input_dropout=0.2,
        dropout=0.1,
    )
    batch = samples * machines.devices // micro_batches
    layers = models.footprint(
        model, embedding_shapes(tables, features), DENSE_FEATURES, batch
    )
    rows_bytes = 4 * embedding_width(tables, features)
    kept_bytes = activation_bytes(layers.kept_bytes, rows_bytes)
    workload = dataclasses.replace(
        listed.workload(machines, batch, overlap=False),
        wire=Wire(rows="float16", gradients="float16"),
        dense=DenseLoad(layers.parameters, 2, kept_bytes),
        micro_batches=micro_batches,
    )
    if longest == skew.LONGEST:
        statistics = statistics_of(next(skew.steps(Yambda(), 1)))
        workload = dataclasses.replace(workload, statistics=statistics)
    return Request(workload, tables, features, model)


def compile_plan(
    plan: Plan, config: DLRMv4Config, workload: Workload
) -> tuple[jax.stages.Compiled, TrainState]:
    """Returns the compiled step of a plan, and the shapes of its state."""
    machines, micro_batches = workload.fleet, workload.micro_batches
    mesh = absent_mesh(machines, machines.device.memory_bytes)
    collection = EmbeddingCollection(
        plan, mesh, wire=workload.wire, implementation="xla"
    )
    shapes = collection.output_shapes
    model = step_model(models.build(config, shapes, DENSE_FEATURES, nnx.Rngs(0)))
    optimizers = Optimizers(
        build_dense_optimizer(DenseOptimizerConfig(kind="adam"), steps=1),
        build_embedding_optimizer(EmbeddingOptimizerConfig(), steps=1),
    )
    state = abstract_state(model, collection, optimizers)
    options = StepOptions(micro_batches)
    step = make_train_step(model, collection, optimizers, state, options)
    batch = abstract_batch(plan, mesh, DENSE_FEATURES, micro_batches=micro_batches)
    routes = None
    if collection.cached:  # made outside of the step, which finds them a slot
        routes = abstract_routes(collection, batch, micro_batches)
    with jax.numpy_dtype_promotion("standard"):  # which Adam of Optax needs
        return step.lower(state, batch, routes, None).compile(), state


def arrays_of_all_scores(hlo: str, longest: int) -> int:
    """Returns how many arrays of a program have a sequence's length in two dims."""
    lengths = range(longest, longest + 32)
    shapes = ([int(n) for n in dims.split(",")] for dims in ARRAY.findall(hlo))
    return sum(sum(n in lengths for n in dims) > 1 for dims in shapes)


def case(
    name: str,
    nodes: int,
    micro_batches: int = 1,
    samples: int = skew.BATCH,
    longest: int = skew.LONGEST,
) -> dict[str, Any]:
    """Plans and compiles.

    Args:
      name: name of the fleet.
      nodes: its nodes.
      micro_batches: micro-batches of a step.
      samples: samples a GPU, of all of them.
      longest: events of a history.
    """
    workload, tables, features, model = request(
        name, nodes, micro_batches, samples, longest
    )
    plan = planner.plan_for(workload, tables, features)
    start = time.perf_counter()
    compiled, state = compile_plan(plan, model, workload)
    seconds = time.perf_counter() - start
    memory, hlo = compiled.memory_analysis(), compiled.as_text()
    assert memory is not None
    assert hlo is not None
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert plan.prediction is not None
    return {
        "device": workload.fleet.device.name,
        "devices": workload.devices,
        "longest": longest,
        "samples": samples,
        "micro_batches": micro_batches,
        "compile_s": seconds,
        "arguments_bytes": memory.argument_size_in_bytes,
        "temporaries_bytes": memory.temp_size_in_bytes,
        "planned_bytes": max(plan.prediction.device_bytes),
        "planned_host_bytes": plan.prediction.stored_bytes.get("host", 0),
        "arrays_of_all_scores": arrays_of_all_scores(hlo, longest),
        "compiled": compiled_traffic(collectives(hlo), workload.fleet.gpus_per_node),
        "planned": planned_traffic(plan, workload, parameters),
        "embedding_ms": micro_batches * plan.prediction.step_ms,
        "dense_flops": samples
        * dense_flops(model, embedding_shapes(tables, features), SAMPLES_AT_ONCE),
        "dense_bytes": dense_bytes(hlo),
        "versions": {p: version(p) for p in ("jax", "jaxlib", "flax")},
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(case(sys.argv[1], *map(int, sys.argv[2:]))))
    else:
        results = []
        for cased in CASES:
            results.append(case(*cased))
            text = json.dumps(results, indent=1)
            (HERE / "compiled.json").write_text(text + "\n")
