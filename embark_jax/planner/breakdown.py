"""Takes a plan's predicted time apart: by phase, by table, and by pair of devices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embark_jax.planner.cost import ProgramModel
from embark_jax.planner.ledger import Ledger
from embark_jax.planner.phases import Phase, phases
from embark_jax.planner.predict import account
from embark_jax.planner.prediction import Breakdown
from embark_jax.planner.storage import Placement, StorageKind
from embark_jax.planner.workload import Shape, Workload, shape_of
from embark_jax.tables import FeatureSpec

PHASES = (
    *("sort", "id exchange", "lookup", "row exchange"),
    *("gradients", "gradient exchange", "square exchange", "update"),
)
"""In the order of the step."""
TO_REQUESTER = {"row exchange"}
"""Phases in which owners send; in the others they receive."""


def break_down(
    placements: Sequence[Placement],
    features: Sequence[FeatureSpec],
    workload: Workload,
    model: ProgramModel,
) -> Breakdown:
    """Of a step with ``placements``.

    Args:
      placements, features, workload, model: as for ``predict``.
    """
    ledger = account(placements, features, workload, model)
    parts = phases(placements, features, workload, model)
    shapes = [shape_of(placement, features, workload) for placement in placements]
    to_owner, from_owner = _useful_bytes(placements, shapes, workload, model)
    exchanged = sum(
        part.buffer_bytes
        for part in parts
        if part.collective == "all_to_all" and part.reach != "rail"
    )
    reduced = sum(
        float((p.node_link_bytes + p.network_bytes).max())
        for p in parts
        if p.collective not in (None, "all_to_all")
    )
    return Breakdown(
        _phase_ms(parts, workload.devices),
        _table_ms(placements, shapes, ledger, model),
        tuple(map(float, to_owner)),
        tuple(map(float, from_owner)),
        exchanged / workload.devices,
        reduced,
    )


def _phase_ms(parts: Sequence[Phase], devices: int) -> dict[str, tuple[float, ...]]:
    names = dict.fromkeys((*PHASES, *(part.name for part in parts)))
    total_ms = {name: np.zeros(devices) for name in names}
    for part in parts:
        total_ms[part.name] += part.device_ms
    return {name: tuple(map(float, ms)) for name, ms in total_ms.items() if ms.any()}


def _table_ms(
    placements: Sequence[Placement],
    shapes: Sequence[Shape],
    ledger: Ledger,
    model: ProgramModel,
) -> dict[str, float]:
    slowest = int(np.argmax(ledger.device_ms()))
    shared_ms = (
        (ledger.fixed_ms, [1.0] * len(shapes)),
        (
            ledger.piece_ms * ledger.pieces.max(axis=1),
            [float(shape.use.lanes * shape.shards) for shape in shapes],
        ),
        (
            ledger.node_piece_ms * ledger.node_pieces.max(axis=1),
            [float(shape.use.lanes * shape.column_shards) for shape in shapes],
        ),
        (
            ledger.id_ms * ledger.capacity,
            [
                float(shape.likely_ids(model.workload).sum() * shape.column_shards)
                for shape in shapes
            ],
        ),
    )
    storage = np.array([ledger.storages.index(shape.storage) for shape in shapes])
    table_ms = np.array([model.everywhere_ms(shape) for shape in shapes])
    for storage_ms, weights in shared_ms:
        weight = np.array(weights)
        total = np.bincount(storage, weight, len(ledger.storages))[storage]
        table_ms += storage_ms[storage] * weight / np.where(total, total, 1.0)
    for i, (placement, shape) in enumerate(zip(placements, shapes, strict=True)):
        owned = np.flatnonzero(np.array(placement.devices) == slowest)
        own_ms = model.owner_ms(shape)[owned // placement.column_shards]
        table_ms[i] += own_ms.sum()
    names = [placement.table.name for placement in placements]
    return dict(zip(names, map(float, table_ms), strict=True))


def _useful_bytes(
    placements: Sequence[Placement],
    shapes: Sequence[Shape],
    workload: Workload,
    model: ProgramModel,
) -> tuple[np.ndarray, np.ndarray]:
    """``([devices], [devices])`` bytes to and from the owner, as in ``Breakdown``."""
    devices = workload.devices
    to_owner, from_owner = np.zeros(devices), np.zeros(devices)
    unit_bytes: dict[StorageKind, list[tuple[str, str, float]]] = {}
    for placement, shape in zip(placements, shapes, strict=True):
        kind = shape.storage
        if kind not in unit_bytes:
            unit_bytes[kind] = [
                (unit, work.phase, work.buffer_bytes / devices)
                for unit, work in model.storage_work(kind)
                if work.collective == "all_to_all" and work.reach != "rail"
            ]
        ids = shape.likely_ids(workload) if placement.devices else np.zeros(0)
        counts = {"id": ids, "piece": np.full(len(ids), shape.use.lanes)}
        for unit, phase, each_bytes in unit_bytes[kind]:
            if unit in counts:
                sent = np.repeat(counts[unit] * each_bytes, placement.column_shards)
                side = from_owner if phase in TO_REQUESTER else to_owner
                np.add.at(side, list(placement.devices), sent)
    return to_owner, from_owner
