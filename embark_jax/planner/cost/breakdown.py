"""Takes a plan's predicted time apart: by phase and by table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embark_jax.planner.cost.model import ProgramModel
from embark_jax.planner.cost.objective import (
    PEAK_GRADIENTS,
    PEAK_IDS,
    PEAK_LOOKUP,
    PEAK_NODE,
    PEAK_SUMS,
)
from embark_jax.planner.cost.phases import PHASES, Phase, critical_ms, phases
from embark_jax.planner.cost.predict import Priced, price
from embark_jax.planner.cost.shapes import shapes_of
from embark_jax.planner.cost.what_if import allocation, removals
from embark_jax.planner.request.workload import Workload
from embark_jax.plans.prediction import Breakdown
from embark_jax.plans.storage import Placement, row_ranges
from embark_jax.plans.tables import FeatureSpec


def break_down(
    placements: Sequence[Placement],
    features: Sequence[FeatureSpec],
    workload: Workload,
    model: ProgramModel,
) -> Breakdown:
    """Breaks down the time of a step with ``placements``.

    Args:
      placements, features, workload, model: as for ``predict``.
    """
    priced = price(placements, features, workload, model)
    parts = phases(placements, features, workload, model)
    ranges = row_ranges(placements)
    shapes = shapes_of(ranges, features, workload)
    likely = [each.likely_ids for each in shapes]  # [row_shards] of each row range
    device_ids = np.zeros(workload.devices)
    for i, (rows, ids) in enumerate(zip(ranges, likely, strict=True)):
        each = np.repeat(ids, rows.column_shards) if rows.devices else ids[:0]
        np.add.at(device_ids, priced.owners[i], each)
    exchanged_bytes = sum(
        part.buffer_bytes
        for part in parts
        if part.collective == "all_to_all" and part.reach != "rail"
    )
    reduced_bytes = sum(
        float((part.node_link_bytes + part.network_bytes).max())
        for part in parts
        if part.collective not in (None, "all_to_all")
    )
    names = [rows.table.name for rows in ranges]
    table_ms = dict.fromkeys(names, 0.0)
    for name, ms in zip(names, map(float, _range_ms(priced)), strict=True):
        table_ms[name] += ms
    return Breakdown(
        critical_ms(parts),
        _device_ms(parts, workload.devices),
        table_ms,
        {
            # A table with hot rows has two ranges; the cold rows come last.
            name: float(ids.max() / ids.mean()) if ids.any() else 1.0
            for name, ids in zip(names, likely, strict=True)
        },
        tuple(map(float, device_ids / workload.device_batch)),
        exchanged_bytes / workload.devices,
        reduced_bytes,
        removals(placements, features, workload, model),
        allocation(placements, features, workload, model),
    )


def _device_ms(parts: Sequence[Phase], devices: int) -> dict[str, tuple[float, ...]]:
    names = dict.fromkeys((*PHASES, *(part.name for part in parts)))
    total_ms = {name: np.zeros(devices) for name in names}
    for part in parts:
        total_ms[part.name] += part.device_ms
    return {name: tuple(map(float, ms)) for name, ms in total_ms.items() if ms.any()}


def _range_ms(priced: Priced) -> np.ndarray:
    """Returns ``[ranges]`` the part of the step that each range causes: at every peak
    its part of the fullest device's load, so that the parts sum to the step."""
    candidates, _, loads, objective = priced
    peaks, prices = objective.peaks(loads), objective.prices
    total_ms = candidates.everywhere_ms.copy()
    total_ms += (objective.fixed_ms / np.maximum(loads.tables, 1))[candidates.storage]
    held = objective.counted(loads.own, at_least=True)
    last = int(np.argmax(loads.update_ms))
    for i in range(len(candidates)):
        s, owners = candidates.storage[i], priced.owners[i]
        shards = candidates.shard_loads(i)
        row_shard = np.arange(len(owners)) // candidates.column_shards[i]
        counted = objective.counted(shards, at_least=True)[:, row_shard]
        for peak in (PEAK_SUMS, PEAK_IDS, PEAK_LOOKUP, PEAK_GRADIENTS):
            fullest = int(np.argmax(held[peak, s]))
            if held[peak, s, fullest] > 0:
                mine = counted[peak, owners == fullest].sum()
                share = mine / held[peak, s, fullest]
                total_ms[i] += share * prices[peak, s] * peaks[peak, s]
        total_ms[i] += counted[-1, owners == last].sum()
        if candidates.hierarchical[i]:
            node = int(np.argmax(loads.node_sums[s]))
            mine = loads.of_nodes(i, owners)[node]
            total_ms[i] += prices[PEAK_NODE, s] * mine
    return total_ms
