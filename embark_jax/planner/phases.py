"""A step, phase by phase: what each asks of each device by the program's cost model.

The same terms as in the prediction, before they are added up: a timeline can be made of
them, or a table of where the time goes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from embark_jax.planner.collectives import CollectiveKind, Reach
from embark_jax.planner.cost import ProgramModel
from embark_jax.planner.predict import account
from embark_jax.planner.storage import Placement, StorageKind
from embark_jax.planner.work import Work
from embark_jax.planner.workload import Workload, shape_of
from embark_jax.tables import FeatureSpec


@dataclasses.dataclass(frozen=True, eq=False)
class Phase:
    """What one part of the step asks of the devices, for one storage.

    Attributes:
      name: of the phase, such as "id exchange"; several parts may share it.
      what: is moved.
      storage: for which.
      collective: that carries it, if it travels.
      reach: between which devices.
      buffer_bytes: of that collective, the same on every device.
      memory_bytes, node_link_bytes, network_bytes: ``[devices]`` that each moves in its
        memory, sends inside its node and to other nodes.
      latency_ms: of the collective, whatever its size.
      device_ms: ``[devices]`` time of all that, one after the other.
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


def phases(
    placements: Sequence[Placement],
    features: Sequence[FeatureSpec],
    workload: Workload,
    model: ProgramModel,
    capacities: Mapping[str, int] | None = None,
) -> tuple[Phase, ...]:
    """The phases of a step with ``placements``.

    Args:
      placements, features, workload, model: as for ``predict``.
      capacities: of a plan, by storage name, for exchanges of that size; None takes
        those of the prediction.

    Returns:
      In no particular order. With the prediction's capacities the sum of their
      ``device_ms`` is the prediction's, and its maximum over devices the predicted time
      of the step.
    """
    devices = workload.devices
    ledger = account(placements, features, workload, model)
    everywhere = np.ones(devices)
    parts: list[Phase] = []
    for storage, pieces, node_pieces, capacity in zip(
        ledger.storages,
        ledger.pieces.max(axis=1),
        ledger.node_pieces.max(axis=1),
        ledger.capacity,
        strict=True,
    ):
        if capacities is not None:
            capacity = capacities.get(storage.name, 0)
        units = {
            "storage": 1.0,
            "piece": pieces,
            "node_piece": node_pieces,
            "id": capacity,
        }
        for unit, work in model.storage_work(storage):
            parts.append(_phase(model, storage, work, units[unit] * everywhere))
    for placement in placements:
        shape = shape_of(placement, features, workload)
        for work in model.everywhere_work(shape):
            parts.append(_phase(model, shape.storage, work, everywhere))
        row_shards = np.arange(len(placement.devices)) // placement.column_shards
        for work in model.owner_work(shape):
            of_row_shards = np.broadcast_to(work.memory_bytes, shape.row_shards)
            memory_bytes = np.zeros(devices)
            np.add.at(memory_bytes, [*placement.devices], of_row_shards[row_shards])
            own = dataclasses.replace(work, memory_bytes=memory_bytes)
            parts.append(_phase(model, shape.storage, own, everywhere))
    merged: dict[tuple, Phase] = {}
    for part in parts:
        key = (part.storage, part.name, part.what, part.collective, part.reach)
        merged[key] = _add(merged[key], part) if key in merged else part
    return tuple(merged.values())


def _phase(
    model: ProgramModel, storage: StorageKind, work: Work, times: np.ndarray
) -> Phase:
    """``times`` units of work on each device."""
    sent = model.link_bytes(work)
    return Phase(
        work.phase,
        work.what,
        storage,
        work.collective,
        work.reach,
        work.buffer_bytes * float(times.max()),
        work.memory_bytes * times,
        sent.node_link * times,
        sent.network * times,
        work.latency_ms * float(times.max()),
        model.work_ms(work) * times,
    )


def _add(one: Phase, other: Phase) -> Phase:
    return dataclasses.replace(
        one,
        **{
            name: getattr(one, name) + getattr(other, name)
            for name in (
                *("buffer_bytes", "memory_bytes", "node_link_bytes"),
                *("network_bytes", "latency_ms", "device_ms"),
            )
        },
    )
