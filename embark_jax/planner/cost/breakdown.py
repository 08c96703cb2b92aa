"""Takes a plan's predicted time apart: by phase and by table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embark_jax.planner.cost.objective import (
    AMOUNT_STORE,
    AMOUNT_UPDATE,
    PEAK_GRADIENTS,
    PEAK_IDS,
    PEAK_LOOKUP,
    PEAK_NODE,
    PEAK_SUMS,
)
from embark_jax.planner.cost.phases import PHASES, Phase, critical_ms, phases
from embark_jax.planner.cost.predict import Priced, price
from embark_jax.planner.cost.program import ProgramModel
from embark_jax.planner.cost.shapes import shapes_of, uses_of
from embark_jax.planner.request.workload import Workload
from embark_jax.plans.alike import alike
from embark_jax.plans.prediction import Breakdown, Removal
from embark_jax.plans.storage import Placement, RowRange, row_ranges
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
    of_step = phases(placements, features, workload, model)
    ranges = row_ranges(placements)
    shapes = shapes_of(ranges, features, workload)
    likely = [shape.likely_ids for shape in shapes]  # [row_shards] of each row range
    device_ids = np.zeros(workload.devices)
    for rows, ids, owners in zip(ranges, likely, priced.owners, strict=True):
        if not rows.replicated:
            np.add.at(device_ids, owners, np.repeat(ids, rows.column_shards))
    exchanged_bytes = sum(
        phase.buffer_bytes
        for phase in of_step
        if phase.collective == "all_to_all" and phase.reach != "rail"
    )
    reduced_bytes = sum(
        float((phase.node_link_bytes + phase.network_bytes).max())
        for phase in of_step
        if phase.collective not in (None, "all_to_all")
    )
    names = [rows.table.name for rows in ranges]
    table_ms = dict.fromkeys(names, 0.0)
    for name, ms in zip(names, _range_ms(priced).tolist(), strict=True):
        table_ms[name] += ms
    return Breakdown(
        critical_ms=critical_ms(of_step),
        phase_ms=_device_ms(of_step, workload.devices),
        table_ms=table_ms,
        hottest_row_shard={
            # A table with hot rows has two ranges; the cold rows come last.
            name: float(ids.max() / ids.mean()) if ids.any() else 1.0
            for name, ids in zip(names, likely, strict=True)
        },
        device_ids=tuple(map(float, device_ids / workload.device_batch)),
        padded_bytes=exchanged_bytes / workload.devices,
        reduced_bytes=reduced_bytes,
        hidden_ms=sum(float(phase.hidden_ms.max()) for phase in of_step),
        hit_rates=_hit_rates(ranges, features, workload),
        removals=_removals(priced, placements, features),
    )


def _hit_rates(
    ranges: Sequence[RowRange], features: Sequence[FeatureSpec], workload: Workload
) -> dict[str, float]:
    return {
        rows.table.name: use.hit_rate(workload.batch_size)
        for rows, use in zip(ranges, uses_of(ranges, features, workload), strict=True)
        if rows.table.cached and not rows.replicated
    }


def _device_ms(of_step: Sequence[Phase], devices: int) -> dict[str, tuple[float, ...]]:
    names = dict.fromkeys((*PHASES, *(phase.name for phase in of_step)))
    total_ms = {name: np.zeros(devices) for name in names}
    for phase in of_step:
        total_ms[phase.name] += phase.step_ms
    return {name: tuple(map(float, ms)) for name, ms in total_ms.items() if ms.any()}


def _range_ms(priced: Priced) -> np.ndarray:
    """Returns ``[ranges]`` the ms of the step that each range causes: at every peak its
    share of the fullest device's load, so that they sum to the step."""
    candidates, all_owners, loads, objective = priced
    peaks_ms = objective.prices * objective.peaks(loads)
    total_ms = candidates.everywhere_ms.copy()
    total_ms += (objective.fixed_ms / np.maximum(loads.tables, 1))[candidates.storage]
    of_devices = objective.counted(loads.own, at_least=True)
    last = int(np.argmax(loads.update_ms))
    slowest = int(np.argmax(loads.store_ms))
    exposed = objective.exposed_store_share(loads)
    for i, owners in enumerate(all_owners):
        s = candidates.storage[i]
        row_shard = np.arange(len(owners)) // candidates.column_shards[i]
        of_shards = objective.counted(candidates.shard_loads(i), at_least=True)
        of_shards = of_shards[:, row_shard]
        for peak in (PEAK_SUMS, PEAK_IDS, PEAK_LOOKUP, PEAK_GRADIENTS):
            fullest = int(np.argmax(of_devices[peak, s]))
            whole = of_devices[peak, s, fullest]
            if whole > 0:
                share = of_shards[peak, owners == fullest].sum() / whole
                total_ms[i] += share * peaks_ms[peak, s]
        total_ms[i] += of_shards[AMOUNT_UPDATE, owners == last].sum()
        total_ms[i] += exposed * of_shards[AMOUNT_STORE, owners == slowest].sum()
        if candidates.staged[i]:
            fullest = int(np.argmax(loads.node_sums[s]))
            sums = loads.of_nodes(i, owners)[fullest]
            total_ms[i] += objective.prices[PEAK_NODE, s] * sums
    return total_ms


def _removals(
    priced: Priced, placements: Sequence[Placement], features: Sequence[FeatureSpec]
) -> tuple[Removal, ...]:
    """Returns the step without each table, and without tables that are alike together,
    the placements of the others unchanged.

    A table's part of the step says who causes it, not what it would take off: each
    phase lasts until its fullest device is done, and without the table another device
    may be as full.
    """
    of_table: dict[str, list[int]] = {}
    for i, rows in enumerate(row_ranges(placements)):
        of_table.setdefault(rows.table.name, []).append(i)
    groups = [
        tuple(placement.table.name for placement in group)
        for group in alike(placements, features)
    ]
    singles = [(name,) for name in of_table]
    return tuple(
        Removal(
            names, _step_ms_without(priced, [i for n in names for i in of_table[n]])
        )
        for names in dict.fromkeys([*singles, *groups])
    )


def _step_ms_without(priced: Priced, ranges: Sequence[int]) -> float:
    """Returns the step without these row ranges."""
    if len(ranges) == len(priced.owners):
        return 0.0
    loads = priced.loads.copy()
    for i in ranges:
        loads.add(i, priced.owners[i], times=-1)
    loads.own = np.maximum(loads.own, 0.0)  # rounding errors of the subtraction
    step_ms = priced.objective.step_ms(priced.loads)
    return float(np.clip(priced.objective.step_ms(loads), 0.0, step_ms))
