"""Plans T7 with its large tables in host memory, and compiles its programs for 8 H100s.

    python -m experiments.beyond_memory.compile_t7

Needs JAX's CUDA plugin, and no GPU. Writes t7.json beside itself.
"""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pydantic
from embark_kernels import SGD
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from embark_jax import models, planner
from embark_jax.cache import key_index
from embark_jax.cache.resolving import resolve_routes, words_of_keys
from embark_jax.cache.swaps import Incoming, make_put, make_take, row_values
from embark_jax.config import ModelConfig
from embark_jax.config.table_lists import experiment_of
from embark_jax.embedding.arrays import BATCH
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.device_batch import abstract_batch, route_batch
from embark_jax.plans import fleet
from embark_jax.train.optimizers import Optimizers
from embark_jax.train.state import abstract_state
from embark_jax.train.step import make_train_step
from embark_jax.train.step_model import step_model
from experiments.step_bytes.absent import LARGEST_INT32, absent_mesh

HERE = Path(__file__).parent
LISTED = HERE.parents[1] / "configs" / "models" / "t7.yaml"
LARGE_ROWS = 100_000_000
"""Fewest rows of a table that is put into host memory."""
INCOMING = 1 << 16
"""Rows that one swap may bring into a storage of one device."""


def shaped(tree: Any, sharding: Any) -> Any:
    return jax.tree.map(
        lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=sharding),
        tree,
    )


def as_compiled(tree: Any, shardings: Any) -> Any:
    return jax.tree.map(
        lambda each, s: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=s),
        tree,
        shardings,
    )


def figures(compiled: jax.stages.Compiled, began: float) -> dict[str, float]:
    memory = compiled.memory_analysis()
    assert memory is not None
    return {
        "arguments_gb": memory.argument_size_in_bytes / 1e9,
        "aliased_gb": memory.alias_size_in_bytes / 1e9,
        "temporaries_gb": memory.temp_size_in_bytes / 1e9,
        "compile_s": time.perf_counter() - began,
    }


def main() -> None:
    listed = planner.read_table_list(LISTED.read_text())
    machines = fleet.dgx_h100(1)
    tables, features = listed.specs()
    tables = [
        dataclasses.replace(t, tier="host") if t.rows >= LARGE_ROWS else t
        for t in tables
    ]
    workload = listed.workload(machines, overlap=False)
    plan = planner.plan_for(workload, tables, features)
    assert plan.prediction is not None
    assert listed.dense is not None
    mesh = absent_mesh(machines)
    collection = EmbeddingCollection(plan, mesh)
    cached, rule = collection.cached, SGD(0.01)
    found: dict[str, Any] = {
        "parameters": sum(t.rows * t.dim for t in tables),
        "host_gb": sum(t.rows * t.dim * 4 for t in tables if t.cached) / 1e9,
        "predicted_gb_a_device": max(plan.prediction.device_bytes) / 1e9,
        "slots": {t.name: (t.slots, t.rows) for t in plan.tables if t.cached},
        "rows_gb_a_device": sum(4 * s.width * s.slots_per_device for s in plan.storages)
        / 1e9,
    }
    print(plan)

    described = experiment_of(listed)["model"]
    config = pydantic.TypeAdapter(ModelConfig).validate_python(described)
    dense, optimizers = listed.dense.features, Optimizers(optax.sgd(0.01), rule)
    model = step_model(
        models.build(config, collection.output_shapes, dense, nnx.Rngs(0))
    )
    state = abstract_state(model, collection, optimizers)
    wide = {t.name for t in tables if t.rows > LARGEST_INT32}
    wide_features = {f.name for f in features if f.table in wide}
    batch = abstract_batch(plan, mesh, dense, wide_features)
    by_device = NamedSharding(mesh, BATCH)

    def find_routes(indexes, batch):
        return resolve_routes(collection, indexes, route_batch(collection, batch))

    indexes = shaped(
        jax.eval_shape(
            lambda: {
                name: jax.tree.map(
                    lambda each: jnp.concatenate([each] * plan.devices),
                    key_index.empty_index(each.slots_per_device, words_of_keys(each)),
                )
                for name, each in cached.items()
            }
        ),
        by_device,
    )
    with jax.enable_x64(True):
        began = time.perf_counter()
        compiled = jax.jit(find_routes, donate_argnums=0).lower(indexes, batch)
        shapes = compiled.out_info
        compiled = compiled.compile()
        found["route"] = figures(compiled, began)
        _, routes, demands = as_compiled(shapes, compiled.output_shardings)
    began = time.perf_counter()
    values = {n: row_values(rule, each) for n, each in cached.items()}
    room = {
        name: min(plan.devices * INCOMING, len(each.moves.slot))
        for name, each in demands.items()
    }
    incoming = {
        name: Incoming(
            *(
                jax.ShapeDtypeStruct((room[name], *shape), kind, sharding=by_device)
                for shape, kind in (
                    ((max(v.stop for v in values[name].values()),), np.float32),
                    ((), np.bool_),
                )
            )
        )
        for name in cached
    }
    key = shaped(
        jax.eval_shape(lambda: jax.random.key(0)),
        NamedSharding(mesh, PartitionSpec()),
    )
    moves = {name: demand.moves for name, demand in demands.items()}
    arrays = state.storages, state.embedding_state
    began = time.perf_counter()
    taken = make_take(collection, rule).lower(*arrays, moves, incoming).compile()
    found["take"] = figures(taken, began)
    began = time.perf_counter()
    put = make_put(collection, rule).lower(*arrays, key, moves, incoming).compile()
    found["put"] = figures(put, began)
    with jax.enable_x64(True):
        began = time.perf_counter()
        step = make_train_step(model, collection, optimizers, state)
        lowered = step.lower(state, batch, routes, None)
        found["step"] = figures(lowered.compile(), began)
    (HERE / "t7.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
