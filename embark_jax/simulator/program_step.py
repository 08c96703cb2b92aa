"""The train step of this package, one XLA program, as tasks.

What follows what is read from ``embark_jax/train/step.py`` and
``embark_jax/embedding``; how long the parts for embeddings take is the planner's
prediction, phase by phase. XLA runs kernels one after the other on one stream, and
collectives beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embark_jax.planner.cost import ProgramModel
from embark_jax.planner.dense import DenseNetwork
from embark_jax.planner.phases import Phase, phases
from embark_jax.planner.rates import Rates
from embark_jax.planner.storage import Cluster, Placement, StorageKind
from embark_jax.planner.workload import Workload
from embark_jax.simulator.dense import DType
from embark_jax.simulator.tasks import MEMORY, TENSOR_CORES, Tasks
from embark_jax.simulator.timeline import Task
from embark_jax.tables import FeatureSpec

FLOAT_BYTES = 4
CHECK, UPDATE = "capacity check", "update"
DENSE, DENSE_GRADIENTS = "top backward", "bottom backward"
APPLIED = "update dense"
"""A step is applied as a whole or not at all: what it would make of the dense part must
be known to be finite before rows are written."""

# Stages of a storage, in the order in which they run where nothing overlaps, and what
# each waits for besides.
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


def program_tasks(
    placements: Sequence[Placement],
    features: Sequence[FeatureSpec],
    workload: Workload,
    network: DenseNetwork,
    dtype: DType,
    dense_states: int,
) -> list[Task]:
    """The tasks of a step, in an order in which they could run one after the other.

    Args:
      placements: of all tables.
      features: of the model.
      workload: fleet, batch, skew and optimizer.
      network: the dense layers.
      dtype: that they compute in; their parameters and gradients are float32.
      dense_states: float32 values that their optimizer keeps for each parameter.
    """
    model = ProgramModel(workload)
    found: dict[StorageKind, dict[str, list[Phase]]] = {}
    for phase in phases(placements, features, workload, model):
        of_storage = found.setdefault(phase.storage, {})
        of_storage.setdefault(_stage(phase), []).append(phase)

    make = Tasks(Rates(workload.fleet))
    sharded = [storage for storage in sorted(found) if storage.cluster != "dp"]
    forward: list[Task] = []
    backward: list[Task] = []
    outputs: list[str] = []
    for storage in sorted(found):
        stages = found[storage]
        for stage, after in FORWARD[storage.cluster].items():
            waits = [f"{storage.name} {each}" for each in after]
            forward += _stage_tasks(make, storage, stage, stages.pop(stage, []), waits)
        outputs.append(forward[-1].name)
        for stage, after in BACKWARD[storage.cluster].items():
            waits = [DENSE, *(f"{storage.name} {each}" for each in after)]
            if stage == UPDATE:
                waits += [APPLIED, *([CHECK] if sharded else [])]
            backward += _stage_tasks(make, storage, stage, stages.pop(stage, []), waits)
        if stages:
            raise ValueError(f"storage {storage.name}: no place for {sorted(stages)}")
    if sharded:  # one maximum over devices for all their capacities
        sorts = [f"{storage.name} sort of ids" for storage in sharded]
        needed_bytes = FLOAT_BYTES * len(sharded)
        forward.append(make.all_reduce(CHECK, CHECK, needed_bytes, sorts))
    gradient_bytes = network.parameters * FLOAT_BYTES
    # Gradient read, parameter and states read and written.
    update_bytes = gradient_bytes * (3 + 2 * dense_states)
    return [
        *forward,
        *make.dense(
            network, workload.device_batch, dtype, (), outputs, TENSOR_CORES | MEMORY
        ),
        make.all_reduce("all-reduce", "all-reduce", gradient_bytes, [DENSE_GRADIENTS]),
        make.memory(APPLIED, "dense", update_bytes, ["all-reduce"]),
        *backward,
    ]


def _stage(phase: Phase) -> str:
    """The stage that a phase of the cost model belongs to."""
    if phase.name == "sort":
        return "sort of ids" if phase.what == "ids" else "sort of slots"
    return phase.name


def _stage_tasks(
    make: Tasks, storage: StorageKind, stage: str, parts: list[Phase], after: list[str]
) -> list[Task]:
    """Of a stage, in which a buffer that travels is written before and read after; the
    last of them has the stage's name."""
    name = f"{storage.name} {stage}"
    none = np.zeros(make.rates.fleet.devices)
    moved_bytes = sum((part.memory_bytes for part in parts), start=none)
    if all(part.collective is None for part in parts):
        return [make.memory(name, stage, moved_bytes, after, kernels=0)]
    half = moved_bytes / 2
    link_ms = sum((part.device_ms for part in parts), start=none)
    link_ms = link_ms - make.rates.memory_ms(moved_bytes)
    before, on_the_way = f"{name}: pack", f"{name}: travel"
    return [
        make.memory(before, stage, half, after, kernels=0),
        make.task(
            on_the_way, stage, make.links, link_ms, [before], make.rates.fleet.devices
        ),
        make.memory(name, stage, half, [on_the_way], kernels=0),
    ]
