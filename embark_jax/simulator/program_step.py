"""The train step of this package, one XLA program, as tasks.

The order of the tasks is that of the program that XLA schedules for H100s. The planner
predicts how long the embeddings' tasks take, phase by phase. XLA runs kernels one after
the other on one stream, and collectives beside them. Gradients of what every device
has, the dense layers and rows of DP, are summed by all-reduces that XLA combines.
Gradients of other rows leave after these: so the dense update, which decides whether
the step is applied, runs beside them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from embark_jax.planner.cost.pricing import WorkItem, price
from embark_jax.planner.cost.rates import Rates
from embark_jax.planner.cost.work import STORE
from embark_jax.planner.request.dense import (
    DenseNetwork,
    device_parameters,
    inputs_width,
)
from embark_jax.planner.request.workload import Workload
from embark_jax.plans import traffic
from embark_jax.plans.clusters import Reach
from embark_jax.plans.collectives import COMBINED_BYTES
from embark_jax.plans.kind import StorageKind
from embark_jax.plans.options import Cluster, Dtype
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import FeatureSpec
from embark_jax.plans.wire import VALUE_BYTES
from embark_jax.simulator.tasks import (
    HOST_LINK,
    MEMORY,
    NETWORK,
    NODE_LINK,
    TENSOR_CORES,
    Tasks,
)
from embark_jax.simulator.timeline import Task

GATHER = "gather of inputs"
CHECK = "capacity check"
UPDATE = "update"
SUMMED = "all-reduce"
DENSE, DENSE_GRADIENTS = "cross backward", "bottom backward"
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
        STORE: ("id exchange",),
        "lookup": ("id exchange", STORE),
        "row exchange": ("lookup",),
    },
    "ub": {
        "sort of ids": (),
        "id exchange": ("sort of ids",),
        "sort of slots": ("id exchange",),
        STORE: ("id exchange",),
        "row exchange": ("id exchange", STORE),
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


ROUTING = {"sort of ids", "id exchange", "sort of slots", STORE}
"""Stages that depend on ids alone: with overlap they serve the next batch, and nothing
in the step waits for them. A row store brings the rows of a route that was made before
the step."""
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
    dtype: Dtype,
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
    """
    by_storage: dict[StorageKind, dict[str, list[WorkItem]]] = {}
    for item in price(placements, features, workload).work_items():
        of_storage = by_storage.setdefault(item.storage, {})
        of_storage.setdefault(_stage(item), []).append(item)

    make = Tasks(Rates(workload.fleet))
    sharded = [
        storage for storage in sorted(by_storage) if not storage.of_cluster.replicated
    ]
    forward: list[Task] = []
    routes = [] if workload.overlap else forward
    backward: list[Task] = []
    outputs: list[str] = []
    flags: list[WorkItem] = []
    ids_left: list[str] = []
    summed: list[WorkItem] = []
    ready: list[str] = []
    for storage in sorted(by_storage):
        stages = by_storage[storage]
        for stage, after in FORWARD[storage.cluster].items():
            if workload.overlap and (stage == STORE or stage not in ROUTING):
                after = [
                    stage_name for stage_name in after if stage_name not in ROUTING
                ]
            waits = [f"{storage.name} {stage_name}" for stage_name in after]
            of_stage = stages.pop(stage, [])
            if storage.of_cluster.replicated and stage == "id exchange":
                flags += of_stage
                of_stage = _elsewhere(of_stage)
                ids_left.append(f"{storage.name} {stage}")
            if storage.of_cluster.replicated and stage == "sort of slots":
                waits.append(CHECK)
            made = _stage_tasks(make, storage, stage, of_stage, waits)
            if stage == "id exchange":
                ids_left += [task.name for task in made if task.communicates]
            tasks = routes if stage in ROUTING else forward
            tasks += made
        outputs.append(forward[-1].name)
        for stage, after in BACKWARD[storage.cluster].items():
            if workload.overlap:
                after = [
                    stage_name for stage_name in after if stage_name not in ROUTING
                ]
            waits = [DENSE, *(f"{storage.name} {stage_name}" for stage_name in after)]
            if stage == UPDATE:
                waits += [APPLIED, *([] if workload.overlap else [CHECK])]
            of_stage = stages.pop(stage, [])
            if stage == "gradient exchange" and storage.of_cluster.replicated:
                summed += of_stage
                ready += waits
                of_stage = _elsewhere(of_stage)
            elif stage == "gradient exchange":
                waits.append(SUMMED)
            backward += _stage_tasks(make, storage, stage, of_stage, waits)
        if stages:
            raise ValueError(f"storage {storage.name}: no place for {sorted(stages)}")
    # One maximum over devices, of all capacities, of the ids out of range, and of the
    # flags of touched rows. It starts when the ids have left.
    needed_bytes = traffic.VALUE_BYTES * (len(sharded) + 1)
    flags_bytes = sum(item.buffer for item in flags)
    routes.append(make.all_reduce(CHECK, CHECK, needed_bytes + flags_bytes, ids_left))
    shared_by = 1
    if workload.dense.parallelism == "tensor":
        shared_by = workload.fleet.gpus_per_node
        # Each device of a node gets the inputs of all of its samples.
        samples_bytes = shared_by * workload.device_batch * VALUE_BYTES[dtype]
        gather_ms = make.rates.node.all_gather_ms(samples_bytes * inputs_width(network))
        forward.append(make.on_node_links(GATHER, GATHER, [gather_ms], outputs))
        outputs = [GATHER]
    return [
        *forward,
        *make.dense(
            network,
            workload.device_batch,
            dtype,
            () if shared_by == 1 else outputs,
            outputs,
            TENSOR_CORES | MEMORY,
            shared_by,
        ),
        *backward,
        *_update_dense(make, workload, network, dense_states, summed, ready),
        *(routes if workload.overlap else []),
    ]


def _update_dense(
    make: Tasks,
    workload: Workload,
    network: DenseNetwork,
    states: int,
    rows: Sequence[WorkItem],
    rows_ready: Sequence[str],
) -> list[Task]:
    """Sums gradients over devices and updates. With ZeRO each device updates a share,
    which it then sends to all. Layers split inside nodes are summed over nodes alone.

    Args:
      network: the dense layers.
      states: float32 values that their optimizer keeps for each parameter.
      rows: work that sums the gradients of rows which every device has.
      rows_ready: tasks that these wait for.
    """
    kind = workload.dense.parallelism
    parameters = network.parameters
    if kind == "tensor":
        parameters = device_parameters(network, workload.fleet.gpus_per_node)
    # The gradient is read; the parameter and its states are read and written.
    update_bytes = parameters * traffic.VALUE_BYTES * (3 + 2 * states)
    rows_bytes = sum(item.buffer for item in rows)
    waits = [DENSE_GRADIENTS, *rows_ready]
    if kind == "replicated":
        value_bytes = VALUE_BYTES[workload.wire.sums]
        ready = [(task, value_bytes * count) for task, count in _made(network)]
        sums = _sums(make, ready, rows_bytes, waits)
        names = [task.name for task in sums]
        return [*sums, make.memory(APPLIED, "dense", update_bytes, names)]
    moved_bytes = parameters * traffic.VALUE_BYTES
    share = f"{APPLIED}: share"
    # Devices tell each other whether the shares are finite.
    applied = make.all_reduce(APPLIED, CHECK, traffic.VALUE_BYTES, [share])
    if kind == "tensor":
        rail_ms = make.rates.rail.all_reduce_ms(moved_bytes)
        along = "dense sums over nodes"
        return [
            make.task(
                along, along, NETWORK, rail_ms, [DENSE_GRADIENTS], workload.devices
            ),
            make.all_reduce(SUMMED, SUMMED, rows_bytes, [*waits, along]),
            make.memory(share, "dense", update_bytes, [SUMMED]),
            applied,
        ]
    # A reduce-scatter goes once around the ring, as an all-gather does.
    scatter, gather = "reduce-scatter", "all-gather"
    return [
        make.all_gather(scatter, scatter, moved_bytes, [DENSE_GRADIENTS]),
        make.all_reduce(SUMMED, SUMMED, rows_bytes, [*waits, scatter]),
        make.memory(share, "dense", update_bytes / workload.devices, [SUMMED]),
        applied,
        make.all_gather(gather, gather, moved_bytes, [APPLIED]),
    ]


def _made(network: DenseNetwork) -> list[tuple[str, int]]:
    """Returns the tasks of backward and the number of parameters whose gradients each
    makes, in order."""
    layers = {
        "top backward": network.top,
        "cross backward": network.cross,
        "bottom backward": network.bottom,
    }
    return [
        (task, sum(inputs * outputs for inputs, outputs in products))
        for task, products in layers.items()
    ]


def _sums(
    make: Tasks,
    ready: Sequence[tuple[str, float]],
    rows_bytes: float,
    waits: Sequence[str],
) -> list[Task]:
    """Returns the all-reduces of gradients: XLA fills one after the other, in the order
    in which gradients are made. Those of rows are in the last.

    Args:
      ready: tasks that make dense gradients, and the bytes of these, in order.
      rows_bytes: bytes of gradients of rows.
      waits: tasks that the last all-reduce waits for.
    """
    total = sum(made_bytes for _, made_bytes in ready) + rows_bytes
    sums: list[Task] = []
    made_bytes = left_bytes = 0.0
    for task, task_bytes in ready:
        made_bytes += task_bytes
        while (
            made_bytes >= left_bytes + COMBINED_BYTES
            and total > left_bytes + COMBINED_BYTES
        ):
            left_bytes += COMBINED_BYTES
            name = f"{SUMMED}: part {len(sums) + 1}"
            sums.append(make.all_reduce(name, SUMMED, COMBINED_BYTES, [task]))
    after = [*waits, *(task.name for task in sums)]
    sums.append(make.all_reduce(SUMMED, SUMMED, total - left_bytes, after))
    return sums


def _elsewhere(items: Sequence[WorkItem]) -> list[WorkItem]:
    """Returns the work in memory of items whose contents travel with others'."""
    return [dataclasses.replace(item, collective=None) for item in items]


def _stage(item: WorkItem) -> str:
    """Returns the stage that a work item belongs to."""
    if item.phase == "sort":
        return "sort of ids" if item.what == "ids" else "sort of slots"
    return item.phase


def _stage_tasks(
    make: Tasks,
    storage: StorageKind,
    stage: str,
    items: list[WorkItem],
    after: list[str],
) -> list[Task]:
    """Returns the tasks of a stage; the last one has the stage's name. A buffer is
    written before it travels and read after. What a hierarchical exchange adds up
    between its two parts counts as written before and read after."""
    name = f"{storage.name} {stage}"
    none = np.zeros(make.rates.fleet.devices)
    if stage == STORE:
        store_ms = sum((item.store_ms.sum(axis=0) for item in items), start=none)
        return [make.task(name, stage, HOST_LINK, store_ms, after)]
    memory_ms = sum((item.memory_ms.sum(axis=0) for item in items), start=none)
    if all(item.collective is None for item in items):
        return [make.task(name, stage, MEMORY, memory_ms, after)]
    fleet = make.rates.fleet
    links = {
        "fleet": (make.links, fleet.devices),
        "node": (NODE_LINK, fleet.gpus_per_node),
        "rail": (NETWORK, fleet.devices),
    }
    tasks = [make.task(f"{name}: pack", stage, MEMORY, memory_ms / 2, after)]
    back = storage.of_cluster.pools_at_owner and stage == "gradient exchange"
    for reach in FAR_FIRST if back else NEAR_FIRST:
        sent = [item for item in items if item.collective and item.reach == reach]
        if not sent:
            continue
        link_ms = sum((item.travel_ms.sum(axis=0) for item in sent), start=none)
        resources, group = links[reach]
        waits = [tasks[-1].name]
        travel = f"{name}: {TRAVEL[reach]}"
        tasks.append(make.task(travel, stage, resources, link_ms, waits, group))
    return [*tasks, make.task(name, stage, MEMORY, memory_ms / 2, [tasks[-1].name])]
