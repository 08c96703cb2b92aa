"""The train step of this package, one XLA program, as tasks.

The order of the tasks follows ``embark_jax/train/step.py`` and
``embark_jax/embedding``. The planner predicts how long the embeddings' tasks take,
phase by phase. XLA runs kernels one after the other on one stream, and collectives
beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embark_jax.planner.cost.phases import Phase, phases
from embark_jax.planner.cost.program import ProgramModel
from embark_jax.planner.cost.rates import Rates
from embark_jax.planner.request.dense import DenseNetwork
from embark_jax.planner.request.workload import Workload
from embark_jax.plans.clusters import Reach
from embark_jax.plans.options import Cluster
from embark_jax.plans.storage import Placement, StorageKind
from embark_jax.plans.tables import FeatureSpec
from embark_jax.simulator.dense import DType
from embark_jax.simulator.tasks import (
    MEMORY,
    NETWORK,
    NODE_LINK,
    TENSOR_CORES,
    Tasks,
)
from embark_jax.simulator.timeline import Task

FLOAT_BYTES = 4
CHECK, UPDATE = "capacity check", "update"
DENSE, DENSE_GRADIENTS = "top backward", "bottom backward"
APPLIED = "update dense"
"""A step is applied as a whole or not at all: the new dense parameters must be known to
be finite before rows are written."""

# Stages of a storage, in the order in which they run without overlap, and what else
# each one waits for.
FORWARD: dict[Cluster, dict[str, tuple[str, ...]]] = {
    "dp": {
        "id exchange": (),
        "sort of slots": ("id exchange",),
        "lookup": (),
    },
    "rb": {
        "sort of ids": (),
        "id exchange": ("sort of ids",),
        "sort of slots": ("id exchange",),
        "lookup": ("id exchange",),
        "row exchange": ("lookup",),
    },
    "ub": {
        "sort of ids": (),
        "id exchange": ("sort of ids",),
        "sort of slots": ("id exchange",),
        "row exchange": ("id exchange",),
        "lookup": ("row exchange",),
    },
}
BACKWARD: dict[Cluster, dict[str, tuple[str, ...]]] = {
    "dp": {
        "gradients": ("sort of slots",),
        "gradient exchange": ("gradients",),
        UPDATE: ("gradient exchange",),
    },
    "rb": {
        "gradient exchange": (),
        "gradients": ("gradient exchange", "sort of slots"),
        "square exchange": ("gradients",),
        UPDATE: ("square exchange",),
    },
    "ub": {
        "gradients": (),
        "gradient exchange": ("gradients",),
        "square exchange": ("gradient exchange", "sort of slots"),
        UPDATE: ("square exchange",),
    },
}


ROUTING = {"sort of ids", "id exchange", "sort of slots"}
"""Stages that depend on ids alone: with overlap they serve the next batch, and nothing
in the step waits for them."""
NEAR_FIRST: tuple[Reach, ...] = ("fleet", "node", "rail")
FAR_FIRST: tuple[Reach, ...] = ("fleet", "rail", "node")
"""The order of the stages of an exchange; gradients of sums use the reverse order."""
TRAVEL = {
    "fleet": "travel",
    "node": "travel inside nodes",
    "rail": "travel along rails",
}


def program_tasks(
    placements: Sequence[Placement],
    features: Sequence[FeatureSpec],
    workload: Workload,
    network: DenseNetwork,
    dtype: DType,
    dense_states: int,
) -> list[Task]:
    """Returns the tasks of a step, in an order in which they could run one after the
    other.

    Args:
      placements: placements of all tables.
      features: features of the model.
      workload: fleet, batch, skew and optimizer; whether the step makes the routes of
        the next batch; and how the dense layers lie on the devices.
      network: the dense layers.
      dtype: data type of the dense layers; their parameters and gradients are float32.
      dense_states: float32 values that their optimizer keeps for each parameter.

    Raises:
      ValueError: if the dense layers are split inside nodes, which is not simulated
        yet.
    """
    if workload.dense.parallelism == "tensor":
        raise ValueError(
            "train.dense is 'tensor', whose sums inside nodes cannot be simulated; "
            "simulate 'replicated' or 'zero1'"
        )
    model = ProgramModel(workload)
    by_storage: dict[StorageKind, dict[str, list[Phase]]] = {}
    for phase in phases(placements, features, workload, model):
        of_storage = by_storage.setdefault(phase.storage, {})
        of_storage.setdefault(_stage(phase), []).append(phase)

    make = Tasks(Rates(workload.fleet))
    sharded = [
        storage for storage in sorted(by_storage) if not storage.of_cluster.replicated
    ]
    forward: list[Task] = []
    routes = [] if workload.overlap else forward
    backward: list[Task] = []
    outputs: list[str] = []
    for storage in sorted(by_storage):
        stages = by_storage[storage]
        for stage, after in FORWARD[storage.cluster].items():
            if workload.overlap and stage not in ROUTING:
                after = [
                    stage_name for stage_name in after if stage_name not in ROUTING
                ]
            waits = [f"{storage.name} {stage_name}" for stage_name in after]
            tasks = routes if stage in ROUTING else forward
            tasks += _stage_tasks(make, storage, stage, stages.pop(stage, []), waits)
        outputs.append(forward[-1].name)
        for stage, after in BACKWARD[storage.cluster].items():
            if workload.overlap:
                after = [
                    stage_name for stage_name in after if stage_name not in ROUTING
                ]
            waits = [DENSE, *(f"{storage.name} {stage_name}" for stage_name in after)]
            if stage == UPDATE:
                waits += [APPLIED, *([] if workload.overlap else [CHECK])]
            backward += _stage_tasks(make, storage, stage, stages.pop(stage, []), waits)
        if stages:
            raise ValueError(f"storage {storage.name}: no place for {sorted(stages)}")
    # One maximum over devices, of all capacities and of the ids out of range.
    sorts = [f"{storage.name} sort of ids" for storage in sharded]
    needed_bytes = FLOAT_BYTES * (len(sharded) + 1)
    routes.append(make.all_reduce(CHECK, CHECK, needed_bytes, sorts))
    return [
        *forward,
        *make.dense(
            network, workload.device_batch, dtype, (), outputs, TENSOR_CORES | MEMORY
        ),
        *_update_dense(make, workload, network.parameters * FLOAT_BYTES, dense_states),
        *backward,
        *(routes if workload.overlap else []),
    ]


def _update_dense(
    make: Tasks, workload: Workload, gradient_bytes: int, states: int
) -> list[Task]:
    """Sums gradients over devices and updates. With ZeRO each device updates a part,
    which it then sends to all."""
    if not gradient_bytes:
        return [make.memory(APPLIED, "dense", 0, [DENSE_GRADIENTS], kernels=0)]
    # The gradient is read; the parameter and its states are read and written.
    update_bytes = gradient_bytes * (3 + 2 * states)
    summed = (gradient_bytes, [DENSE_GRADIENTS])
    if workload.dense.parallelism == "replicated":
        return [
            make.all_reduce("all-reduce", "all-reduce", *summed),
            make.memory(APPLIED, "dense", update_bytes, ["all-reduce"]),
        ]
    # A reduce-scatter goes once around the ring, as an all-gather does.
    share_bytes = update_bytes / workload.devices
    return [
        make.all_gather("reduce-scatter", "reduce-scatter", *summed),
        make.memory(APPLIED, "dense", share_bytes, ["reduce-scatter"]),
        make.all_gather("all-gather", "all-gather", gradient_bytes, [APPLIED]),
    ]


def _stage(phase: Phase) -> str:
    """Returns the stage that a phase of the cost model belongs to."""
    if phase.name == "sort":
        return "sort of ids" if phase.what == "ids" else "sort of slots"
    return phase.name


def _stage_tasks(
    make: Tasks,
    storage: StorageKind,
    stage: str,
    phases_of_stage: list[Phase],
    after: list[str],
) -> list[Task]:
    """Returns the tasks of a stage; the last one has the stage's name. A buffer is
    written before it travels and read after. What a hierarchical exchange adds up
    between its two parts counts as written before and read after."""
    name = f"{storage.name} {stage}"
    none = np.zeros(make.rates.fleet.devices)
    moved_bytes = sum((phase.memory_bytes for phase in phases_of_stage), start=none)
    if all(phase.collective is None for phase in phases_of_stage):
        return [make.memory(name, stage, moved_bytes, after, kernels=0)]
    half = moved_bytes / 2
    fleet = make.rates.fleet
    links = {
        "fleet": (make.links, fleet.devices),
        "node": (NODE_LINK, fleet.gpus_per_node),
        "rail": (NETWORK, fleet.devices),
    }
    tasks = [make.memory(f"{name}: pack", stage, half, after, kernels=0)]
    back = storage.of_cluster.pools_at_owner and stage == "gradient exchange"
    for reach in FAR_FIRST if back else NEAR_FIRST:
        sent = [
            phase
            for phase in phases_of_stage
            if phase.collective and phase.reach == reach
        ]
        if not sent:
            continue
        link_ms = sum(
            (
                phase.device_ms - make.rates.memory_ms(phase.memory_bytes)
                for phase in sent
            ),
            start=none,
        )
        resources, group = links[reach]
        waits = [tasks[-1].name]
        travel = f"{name}: {TRAVEL[reach]}"
        tasks.append(make.task(travel, stage, resources, link_ms, waits, group))
    return [*tasks, make.memory(name, stage, half, [tasks[-1].name], kernels=0)]
