"""Compiles the train step of one published model for H100s that are not there, and
prints what the compiler says beside what the plan says, as JSON.

    python -m experiments.compile_at_scale.compile MODEL NODES [GPUS_PER_NODE [BATCH]]
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from embark_jax import planner
from embark_jax.planner import ProgramModel, Workload, phases
from embark_jax.plans import fleet
from embark_jax.plans.plan import Plan
from embark_jax.plans.traffic import all_reduce_bytes
from experiments.compile_at_scale.program import Collective, collectives
from experiments.step_bytes.absent import absent_mesh, compile_step

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "configs" / "models"


def bytes_per_device(arrays: Any) -> int:
    return sum(
        leaf.dtype.itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape))
        for leaf in jax.tree.leaves(arrays)
    )


def planned_traffic(plan: Plan, workload: Workload, parameters: int) -> dict[str, Any]:
    """Buffers of a device, and bytes that it sends, by the cost model."""
    model = ProgramModel(workload)
    parts = phases(plan.placements, plan.features, workload, model, plan.capacities)
    by_kind: dict[str, float] = defaultdict(float)
    inside = between = 0.0
    for part in parts:
        if part.collective is not None:
            by_kind[part.collective.replace("_", "-")] += part.buffer_bytes
        inside += float(part.node_link_bytes.max())
        between += float(part.network_bytes.max())
    # Of the whole step: the capacities and whether an id was bad, gradients of the
    # dense layers, the loss, and whether the gradients of rows are finite.
    needed = len(plan.capacities) + 1
    for summed_bytes in (4 * needed, 4 * parameters, 4, 4):
        by_kind["all-reduce"] += summed_bytes
        sent = all_reduce_bytes(summed_bytes, plan.nodes, plan.gpus_per_node)
        inside, between = inside + sent.node_link, between + sent.network
    return {
        "buffer_bytes": dict(by_kind),
        "inside_bytes": inside,
        "between_bytes": between,
    }


def compiled_traffic(found: list[Collective], gpus_per_node: int) -> dict[str, Any]:
    """Bytes a device sends, and by how much of them the schedule computes meanwhile."""
    by_kind: dict[str, float] = defaultdict(float)
    inside = between = overlapped = 0.0
    for each in found:
        by_kind[each.kind] += each.buffer_bytes
        near, far = each.node_bytes(gpus_per_node)
        inside, between = inside + near, between + far
        overlapped += each.buffer_bytes if each.between else 0
    total = sum(by_kind.values())
    return {
        "collectives": len(found),
        "buffer_bytes": dict(by_kind),
        "inside_bytes": inside,
        "between_bytes": between,
        "overlapped_share": overlapped / total if total else 0.0,
    }


def case(
    name: str, nodes: int, gpus_per_node: int = 8, batch: int | None = None
) -> dict[str, Any]:
    """Plans and compiles."""
    listed = planner.read_table_list((MODELS / f"{name}.yaml").read_text())
    machines = fleet.Fleet(fleet.dgx_h100().device, nodes, gpus_per_node)
    workload = listed.workload(machines, batch, overlap=False)
    with_adagrad = dataclasses.replace(workload.dense, states=1)
    workload = dataclasses.replace(workload, dense=with_adagrad)
    plan = planner.plan_for(workload, *listed.specs())
    start = time.perf_counter()
    mesh = absent_mesh(machines)
    compiled, state = compile_step(listed, plan, mesh, workload.optimizer)
    seconds = time.perf_counter() - start
    memory, hlo = compiled.memory_analysis(), compiled.as_text()
    assert memory is not None
    assert hlo is not None
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert plan.prediction is not None
    return {
        "model": listed.name,
        "devices": plan.devices,
        "batch_size": plan.batch_size,
        "compile_s": seconds,
        "hlo_bytes": len(hlo),
        "compiled_memory": {
            "arguments_bytes": memory.argument_size_in_bytes,
            "temporaries_bytes": memory.temp_size_in_bytes,
            "aliased_bytes": memory.alias_size_in_bytes,
            "tables_bytes": bytes_per_device((state.storages, state.embedding_state)),
        },
        "planned_memory": plan.prediction.device_bytes[0],
        "compiled": compiled_traffic(collectives(hlo), gpus_per_node),
        "planned": planned_traffic(plan, workload, parameters),
        "clusters": sorted(storage.name for storage in plan.storages),
        "versions": {p: version(p) for p in ("jax", "jaxlib", "flax")},
    }


if __name__ == "__main__":
    name, *sizes = sys.argv[1:]
    print(json.dumps(case(name, *map(int, sizes))))
