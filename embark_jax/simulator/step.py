"""The train step of this package, one XLA program, as tasks.

The planner's work items say how long each stage of a storage takes; here is their
order, that of the program that XLA schedules for H100s. XLA runs kernels one after the
other on one stream, and collectives beside them. Gradients of what every device has,
the dense layers and rows of DP, are summed by all-reduces that XLA combines. Gradients
of other rows leave after these: so the dense update, which decides whether the step is
applied, runs beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from embark_jax.planner.cost.dense import dense_parts
from embark_jax.planner.cost.pricing import PricedPlan, WorkItem
from embark_jax.planner.cost.rates import Rates
from embark_jax.planner.cost.work import STORE
from embark_jax.plans import traffic
from embark_jax.plans.clusters import Reach
from embark_jax.plans.options import ClusterName
from embark_jax.plans.placement import StorageKind
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
SUMMED = "all-reduce"
DENSE, DENSE_GRADIENTS = "cross backward", "bottom backward"
APPLIED = "update dense"
"""A step is applied as a whole or not at all: the new dense parameters must be known to
be finite before rows are written."""
KERNELS_A_PRODUCT = 11
"""Kernels for each product of dense layers beside its own three: what is elementwise,
sums of biases' gradients, checks and updates, which XLA leaves in a kernel for each
array. As counted in compiled steps (``experiments/step_bytes/timeline``)."""

# Stages of a storage, each after the one before it.
IDS, SLOTS, ID_EXCHANGE = "sort of ids", "sort of slots", "id exchange"
ROUTE = (IDS, ID_EXCHANGE, STORE, SLOTS)
"""Stages that depend on ids alone: with overlap they serve the next batch, and nothing
in the step waits for them. A row store brings the rows of a route that was made before
the step."""
FORWARD: dict[ClusterName, tuple[str, ...]] = {
    "dp": ("lookup",),
    "rb": ("lookup", "row exchange"),
    "ub": ("row exchange", "lookup"),
}
BACKWARD: dict[ClusterName, tuple[str, ...]] = {
    "dp": ("gradients", "gradient exchange", "update"),
    "rb": ("gradient exchange", "gradients", "square exchange", "update"),
    "ub": ("gradients", "gradient exchange", "square exchange", "update"),
}
NEAR_FIRST: tuple[Reach, ...] = ("fleet", "node", "rail")
"""The order of the parts of an exchange; gradients of sums use the reverse order."""
TRAVEL: dict[Reach, str] = {
    "fleet": "travel",
    "node": "travel inside nodes",
    "rail": "travel along rails",
}
Stages = dict[str, list[WorkItem]]


def step_tasks(priced: PricedPlan) -> list[Task]:
    """Returns the tasks of a step, in an order in which they could run one after the
    other.

    Args:
      priced: the plan. Its workload says whether the step makes the routes of the next
        batch, and how the dense layers lie on the devices.
    """
    step = _Step(priced)
    workload = priced.workload
    load, make = workload.dense, step.make
    storages: dict[StorageKind, Stages] = {}
    for item in priced.work_items():
        stages = storages.setdefault(item.storage, {})
        stages.setdefault(_stage(item), []).append(item)
    for storage in sorted(storages):
        step.add(storage, storages[storage])
    # One maximum over devices, of all capacities, of the ids out of range, and of the
    # flags of touched rows. It starts when the ids have left.
    sharded = [storage for storage in storages if not storage.of_cluster.replicated]
    checked = len(sharded) + sum(storage.tier == "device" for storage in sharded) + 1
    checked_bytes = traffic.WORD_BYTES * checked + step.flags_bytes
    check = make.all_reduce(CHECK, CHECK, checked_bytes, step.ids_left)
    routes, outputs, forward = [*step.routes, check], step.outputs, step.forward
    gpus = load.shared_by(workload.fleet)
    if gpus > 1:
        # Each device of a node gets the inputs of all of its samples.
        samples_bytes = gpus * workload.device_batch * VALUE_BYTES[load.dtype]
        gather_ms = make.rates.of("node").all_gather_ms(
            samples_bytes * load.layers.inputs_width
        )
        forward.append(
            make.task(GATHER, GATHER, NODE_LINK, gather_ms, step.outputs, gpus)
        )
        outputs = [GATHER]
    return [
        *([] if workload.overlap else routes),
        *forward,
        *make.dense(
            load,
            workload.device_batch,
            () if gpus == 1 else outputs,
            outputs,
            TENSOR_CORES | MEMORY,
        ),
        *step.backward,
        *step.dense_update(),
        *(routes if workload.overlap else []),
    ]


def is_route(task: Task) -> bool:
    """Returns whether a task of a step makes routes."""
    return task.name == CHECK or task.phase in ROUTE


def _stage(item: WorkItem) -> str:
    """Returns the stage that a work item belongs to."""
    if item.phase == "sort":
        return IDS if item.what == "ids" else SLOTS
    return item.phase


class _Step:
    """Tasks of a step whose storages are added one after the other.

    Attributes:
      routes, forward, backward: the tasks so far.
      ids_left: tasks after which the ids of a storage have left.
      outputs: last tasks of forward.
      flags_bytes: what says of replicated rows which are touched, and travels in the
        capacity check.
      rows_bytes, rows_ready: gradients of replicated rows, which travel with those of
        the dense layers, and the tasks that make them.
    """

    def __init__(self, priced: PricedPlan):
        self.workload = priced.workload
        self.make = Tasks(Rates(priced.workload.fleet))
        self.routes: list[Task] = []
        self.forward: list[Task] = []
        self.backward: list[Task] = []
        self.ids_left: list[str] = []
        self.outputs: list[str] = []
        self.flags_bytes = self.rows_bytes = 0.0
        self.rows_ready: list[str] = []

    def add(self, storage: StorageKind, stages: Stages) -> None:
        """Adds the stages of a storage."""
        replicated, overlap = storage.of_cluster.replicated, self.workload.overlap

        def name_of(stage: str) -> str:
            return f"{storage.name} {stage}"

        def made(stage: str, waits: Iterable[str]) -> list[Task]:
            return self._stage_tasks(storage, stage, stages.pop(stage, []), waits)

        waits: dict[str, list[str]] = {
            IDS: [],
            ID_EXCHANGE: [name_of(IDS)],
            STORE: [] if overlap else [name_of(ID_EXCHANGE)],
            SLOTS: [CHECK if replicated else name_of(ID_EXCHANGE)],
        }
        if replicated:
            self.flags_bytes += _buffer(stages, ID_EXCHANGE)
            self.rows_bytes += _buffer(stages, "gradient exchange")
            self.rows_ready.append(name_of("gradients"))
        for stage in ROUTE:
            tasks = made(stage, waits[stage])
            self.routes += tasks
            if stage == ID_EXCHANGE:
                left = [task for task in tasks if task.communicates or replicated]
                self.ids_left += [task.name for task in left]
        before = [] if overlap else [name_of(ID_EXCHANGE), name_of(STORE)]
        for stage in FORWARD[storage.cluster]:
            self.forward += made(stage, before)
            before = [name_of(stage)]
        self.outputs += before
        before = [DENSE] if overlap else [DENSE, name_of(SLOTS)]
        for stage in BACKWARD[storage.cluster]:
            if stage == "gradient exchange" and not replicated:
                before.append(SUMMED)
            if stage == "update":
                before += [APPLIED, *([] if overlap else [CHECK])]
            self.backward += made(stage, before)
            before = [name_of(stage)]
        if stages:
            raise ValueError(f"storage {storage.name}: no place for {sorted(stages)}")

    def _stage_tasks(
        self,
        storage: StorageKind,
        stage: str,
        items: Sequence[WorkItem],
        after: Iterable[str],
    ) -> list[Task]:
        """Returns the tasks of a stage; the last one has the stage's name. A buffer is
        written before it travels and read after. What a hierarchical exchange adds up
        between its two parts counts as written before and read after. What replicated
        rows send travels with others'."""
        name, fleet, make = f"{storage.name} {stage}", self.workload.fleet, self.make
        if stage == STORE:
            return [make.task(name, stage, HOST_LINK, _ms(items, "store_ms"), after)]
        memory_ms = _ms(items, "memory_ms")
        sent = [item for item in items if item.collective]
        if storage.of_cluster.replicated or not sent:
            return [make.task(name, stage, MEMORY, memory_ms, after)]
        links = {
            "fleet": (make.links, fleet.devices),
            "node": (NODE_LINK, fleet.gpus_per_node),
            "rail": (NETWORK, fleet.devices),
        }
        back = storage.of_cluster.pools_at_owner and stage == "gradient exchange"
        tasks = [make.task(f"{name}: pack", stage, MEMORY, memory_ms / 2, after)]
        for reach in reversed(NEAR_FIRST) if back else NEAR_FIRST:
            together = [item for item in sent if item.reach == reach]
            if together:
                ms, (resources, group) = _ms(together, "travel_ms"), links[reach]
                travel, waits = f"{name}: {TRAVEL[reach]}", [tasks[-1].name]
                tasks.append(make.task(travel, stage, resources, ms, waits, group))
        waits = [tasks[-1].name]
        return [*tasks, make.task(name, stage, MEMORY, memory_ms / 2, waits)]

    def dense_update(self) -> list[Task]:
        """Returns the sums of gradients over devices, those of replicated rows with
        them, and the update of the dense layers. With ZeRO each device updates a share,
        which it then sends to all. Layers split inside nodes are summed over nodes
        alone."""
        make, load, devices = self.make, self.workload.dense, self.workload.devices
        parameters = load.device_parameters(self.workload.fleet)
        stacks = load.layers.bottom, load.layers.cross, load.layers.top
        kernels = KERNELS_A_PRODUCT * sum(map(len, stacks))
        # What is new is made twice, of gradient, parameter and states: to be checked,
        # and to be written.
        values = 2 * (2 + load.states) + 1 + load.states
        update_bytes = parameters * traffic.WORD_BYTES * values
        if load.parallelism == "replicated":
            sums = self._sums()
            names = [task.name for task in sums]
            if devices > 1:  # gradients are copied into one array, and cut out of it
                update_bytes += 4 * parameters * traffic.WORD_BYTES
            return [*sums, make.memory(APPLIED, "dense", update_bytes, names, kernels)]
        moved_bytes = parameters * traffic.WORD_BYTES
        share, gather = f"{APPLIED}: share", []
        if load.parallelism == "tensor":
            along, ms = (
                "dense sums over nodes",
                make.rates.of("rail").all_reduce_ms(moved_bytes),
            )
            first = make.task(along, along, NETWORK, ms, [DENSE_GRADIENTS], devices)
        else:  # a reduce-scatter goes once around the ring, as an all-gather does
            ms, update_bytes = (
                make.rates.all_gather_ms(moved_bytes),
                update_bytes / devices,
            )
            scatter = "reduce-scatter"
            first = make.over_all(scatter, scatter, ms, [DENSE_GRADIENTS])
            gather = [make.over_all("all-gather", "all-gather", ms, [APPLIED])]
        waits = [DENSE_GRADIENTS, first.name, *self.rows_ready]
        return [
            first,
            make.all_reduce(SUMMED, SUMMED, self.rows_bytes, waits),
            make.memory(share, "dense", update_bytes, [SUMMED], kernels),
            # Devices tell each other whether the shares are finite.
            make.all_reduce(APPLIED, CHECK, traffic.WORD_BYTES, [share]),
            *gather,
        ]

    def _sums(self) -> list[Task]:
        """Returns the all-reduces of gradients: XLA fills one after the other, in the
        order in which gradients are made. Those of rows are in the last."""
        workload = self.workload
        value_bytes = VALUE_BYTES[workload.wire.sums]
        parts = dense_parts(workload.dense, workload.device_batch, self.make.rates)
        total = value_bytes * sum(part.parameters for part in parts) + self.rows_bytes
        sums: list[Task] = []
        made_bytes = left_bytes = 0.0
        for part in parts:
            made_bytes += value_bytes * part.parameters
            while made_bytes >= left_bytes + traffic.COMBINED_BYTES < total:
                left_bytes += traffic.COMBINED_BYTES
                name = f"{SUMMED}: part {len(sums) + 1}"
                sums.append(
                    self.make.all_reduce(
                        name, SUMMED, traffic.COMBINED_BYTES, [part.name]
                    )
                )
        waits = [DENSE_GRADIENTS, *self.rows_ready, *(task.name for task in sums)]
        last = self.make.all_reduce(SUMMED, SUMMED, total - left_bytes, waits)
        return [*sums, last]


def _buffer(stages: Stages, stage: str) -> float:
    return sum(item.buffer for item in stages.get(stage, []))


def _ms(items: Iterable[WorkItem], kind: str) -> np.ndarray | float:
    """Returns ``[devices]`` the time of some kind of items that run one after the
    other."""
    return sum(getattr(item, kind).sum(axis=0) for item in items)
