"""The phases of a step: the work of each device in each, by the program's cost model.

The terms are those of the objective, before they are added up: a timeline can be made
of them, or a table of where the time goes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from embark_jax.planner.cost.model import STORE
from embark_jax.planner.cost.objective import PEAK_IDS, PEAK_NODE, PEAK_SUMS
from embark_jax.planner.cost.predict import price
from embark_jax.planner.cost.program import ProgramModel
from embark_jax.planner.cost.shapes import ranges_of, shapes_of
from embark_jax.planner.cost.work import Work
from embark_jax.planner.request.workload import Workload
from embark_jax.plans.clusters import Reach
from embark_jax.plans.collectives import CollectiveKind
from embark_jax.plans.storage import Placement, StorageKind
from embark_jax.plans.tables import FeatureSpec

PHASES = (
    "sort",
    "id exchange",
    "lookup",
    "row exchange",
    "gradients",
    "gradient exchange",
    "square exchange",
    "update",
    STORE,
)
"""Names of the phases, in the order of the step."""


@dataclasses.dataclass(frozen=True, eq=False)
class Phase:
    """The work of the devices in one part of the step, for one storage.

    Attributes:
      name: name of the phase, such as "id exchange"; several parts may share it.
      what: name of what is moved.
      storage: the storage.
      collective: collective that carries it; None if it does not travel.
      reach: devices that take part in the collective.
      buffer_bytes: size of its buffer, the same on every device.
      memory_bytes, node_link_bytes, network_bytes: ``[devices]`` bytes that each moves
        in its memory, sends inside its node and sends to other nodes.
      latency_ms: latency of the collective, whatever its size.
      device_ms: ``[devices]`` time of all these, one after the other.
      hidden_ms: ``[devices]`` part of that time that passes beside the dense layers,
        or for row stores beside the step before.
    """

    name: str
    what: str
    storage: StorageKind
    collective: CollectiveKind | None
    reach: Reach
    buffer_bytes: float
    memory_bytes: np.ndarray
    node_link_bytes: np.ndarray
    network_bytes: np.ndarray
    latency_ms: float
    device_ms: np.ndarray
    hidden_ms: np.ndarray

    @property
    def step_ms(self) -> np.ndarray:
        """``[devices]`` time that the step takes for it."""
        return self.device_ms - self.hidden_ms


def phases(
    placements: Sequence[Placement],
    features: Sequence[FeatureSpec],
    workload: Workload,
    model: ProgramModel,
    capacities: Mapping[str, int] | None = None,
) -> tuple[Phase, ...]:
    """Returns the phases of a step with ``placements``.

    Args:
      placements, features, workload, model: as for ``predict``.
      capacities: capacities of a plan by storage name, for exchanges of that size; None
        takes those of the prediction.

    Returns:
      Parts in no particular order. Their ``critical_ms``, with the prediction's
      capacities, sums to the predicted time of the step.
    """
    priced = price(placements, features, workload, model)
    peaks = priced.objective.peaks(priced.loads)
    everywhere = np.ones(workload.devices)
    unmerged: list[Phase] = []
    for s, storage in enumerate(priced.candidates.storages):
        capacity = peaks[PEAK_IDS, s]
        if capacities is not None:
            capacity = capacities.get(storage.name, 0)
        units = {
            "storage": everywhere,
            "sum": peaks[PEAK_SUMS, s] * everywhere,
            "node_sum": peaks[PEAK_NODE, s] * everywhere,
            "id": capacity * everywhere,
        }
        for unit, work in model.storage_work(storage):
            unmerged.append(_phase(model, storage, work, units[unit]))
    ranges = ranges_of(placements, workload)
    of_ranges = shapes_of(ranges, features, workload)
    for rows, shapes in zip(ranges, of_ranges, strict=True):
        for work in model.everywhere_work(shapes):
            unmerged.append(_phase(model, shapes.storages[0], work, everywhere))
        if rows.replicated:
            continue
        owners = np.array(rows.devices)
        row_shard = np.arange(len(owners)) // rows.column_shards
        for work in model.owner_work(shapes):
            of_devices = {}
            for name in ("memory_bytes", "host_bytes", "disk_bytes"):
                of_shards = np.broadcast_to(getattr(work, name), rows.row_shards)
                of_devices[name] = np.bincount(
                    owners, of_shards[row_shard], workload.devices
                )
            owned = dataclasses.replace(work, **of_devices)
            unmerged.append(_phase(model, shapes.storages[0], owned, everywhere))
    merged: dict[tuple, Phase] = {}
    for phase in unmerged:
        key = phase.storage, phase.name, phase.what, phase.collective, phase.reach
        merged[key] = _add(merged[key], phase) if key in merged else phase
    hidden = 1 - priced.objective.exposed_store_share(priced.loads)
    return tuple(
        dataclasses.replace(phase, hidden_ms=hidden * phase.device_ms)
        if phase.name == STORE
        else phase
        for phase in merged.values()
    )


def critical_ms(of_step: Sequence[Phase]) -> dict[str, float]:
    """Returns how long each phase lasts, in the order of the step: until its fullest
    device is done, storage by storage, or in the update and of row stores all storages
    together."""
    total_ms: dict[tuple[str, StorageKind | None], np.ndarray] = {}
    for phase in of_step:
        # Between exchanges, uneven work ends when the fullest device is done.
        together = phase.name in ("update", STORE)
        key = phase.name, None if together else phase.storage
        total_ms[key] = total_ms.get(key, 0.0) + phase.step_ms
    lasts_ms = dict.fromkeys((*PHASES, *(phase.name for phase in of_step)), 0.0)
    for (name, _), device_ms in total_ms.items():
        lasts_ms[name] += float(device_ms.max())
    return {name: ms for name, ms in lasts_ms.items() if ms}


def _phase(
    model: ProgramModel, storage: StorageKind, work: Work, times: np.ndarray
) -> Phase:
    """Returns the part of the step in which each device does ``times`` units of
    work."""
    sent = model.link_bytes(work)
    travel_ms = model.travel_ms(work) * times
    own_ms = (model.memory_ms(work) + model.store_ms(work)) * times
    most_times = float(times.max())
    return Phase(
        name=work.phase,
        what=work.what,
        storage=storage,
        collective=work.collective,
        reach=work.reach,
        buffer_bytes=float(np.sum(work.buffer_bytes)) * most_times,
        memory_bytes=work.memory_bytes * times,
        node_link_bytes=sent.node_link * times,
        network_bytes=sent.network * times,
        latency_ms=work.latency_ms * most_times,
        device_ms=own_ms + travel_ms,
        hidden_ms=travel_ms * model.hidden_share(work),
    )


def _add(one: Phase, other: Phase) -> Phase:
    return dataclasses.replace(
        one,
        **{
            name: getattr(one, name) + getattr(other, name)
            for name in (
                "buffer_bytes",
                "memory_bytes",
                "node_link_bytes",
                "network_bytes",
                "latency_ms",
                "device_ms",
                "hidden_ms",
            )
        },
    )
