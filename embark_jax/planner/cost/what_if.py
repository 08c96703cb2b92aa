"""What a plan would cost without a table, or with the table split that sets its memory.

A table's part of the step (``breakdown.py``) says who causes it, not what it would take
off: each phase lasts until its fullest device is done, and without the table another
device may be as full. Here the plan is priced again, the other tables where they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from embark_jax.planner.cost.candidates import ROWS
from embark_jax.planner.cost.model import CostModel
from embark_jax.planner.cost.objective import PEAK_ROWS
from embark_jax.planner.cost.predict import Priced, predict, price
from embark_jax.planner.request.workload import Workload
from embark_jax.plans.alike import alike
from embark_jax.plans.clusters import SHARDED
from embark_jax.plans.prediction import Allocation, Removal
from embark_jax.plans.storage import Placement, row_ranges
from embark_jax.plans.tables import FeatureSpec

UNEVEN = 1.2
"""Smallest ratio of the fullest device's rows to the mean at which a shard is said to
set the memory of all."""
LARGE = 0.2
"""Smallest share of all memory that these rows then take."""
LESS = 0.95
"""A split is worth naming if it leaves at most this share of the memory."""


def removals(
    placements: Sequence[Placement],
    features: Sequence[FeatureSpec],
    workload: Workload,
    model: CostModel,
) -> tuple[Removal, ...]:
    """Returns the step without each table, and without tables that are alike
    together, the placements of the others unchanged."""
    priced = price(placements, features, workload, model)
    of_table: dict[str, list[int]] = {}
    for i, rows in enumerate(row_ranges(placements)):
        of_table.setdefault(rows.table.name, []).append(i)
    groups = [
        tuple(placement.table.name for placement in group)
        for group in alike(placements, features)
    ]
    singles = [(name,) for name in of_table]
    return tuple(
        Removal(names, _step_ms_without(priced, [of_table[name] for name in names]))
        for names in dict.fromkeys([*singles, *groups])
    )


def _step_ms_without(priced: Priced, tables: Sequence[Sequence[int]]) -> float:
    loads = priced.loads.copy()
    ranges = [i for table in tables for i in table]
    for i in ranges:
        loads.add(i, priced.owners[i], times=-1)
    if len(ranges) == len(priced.owners):
        return 0.0
    loads.own = np.maximum(loads.own, 0.0)  # rounding errors of the subtraction
    step_ms = priced.objective.step_ms(priced.loads)
    return float(np.clip(priced.objective.step_ms(loads), 0.0, step_ms))


def allocation(
    placements: Sequence[Placement],
    features: Sequence[FeatureSpec],
    workload: Workload,
    model: CostModel,
) -> Allocation | None:
    """Returns the shard that sets the memory of all devices, and what splitting its
    table costs; None if the rows lie evenly or take little of the memory."""
    priced = price(placements, features, workload, model)
    objective = priced.objective
    rows_bytes = objective.held_bytes[PEAK_ROWS][:, None] * priced.loads.own[ROWS]
    storage = int(np.argmax(rows_bytes.max(axis=1)))
    device_bytes = rows_bytes[storage]
    total_bytes = objective.bytes(priced.loads)
    if device_bytes.max() < max(LARGE * total_bytes, UNEVEN * device_bytes.mean()):
        return None
    device = int(np.argmax(device_bytes))
    ranges = row_ranges(placements)
    shards = [
        (ranges[i].shard_slots(k // ranges[i].column_shards), i, k)
        for i, owners in enumerate(priced.owners)
        if priced.candidates.storage[i] == storage
        for k in np.flatnonzero(owners == device).tolist()
    ]
    slots, i, shard = max(shards)
    table = ranges[i].table.name
    row_shard, column_shard = divmod(shard, ranges[i].column_shards)
    unsplit = Allocation(
        table=table,
        row_shard=row_shard,
        column_shard=column_shard,
        device=device,
        shard_bytes=float(objective.held_bytes[PEAK_ROWS, storage] * slots),
        mean_bytes=float(device_bytes.mean()),
    )
    others = [p for p in placements if p.table.name != table]
    (placement,) = (p for p in placements if p.table.name == table)
    splits = []
    for split in _splits(placement, workload.devices, workload.fleet.gpus_per_node):
        if split.problems(workload.devices):
            continue
        prediction = predict([*others, split], features, workload, model)
        if prediction.device_bytes[0] <= LESS * total_bytes:
            splits.append((prediction.step_ms, prediction.device_bytes[0], split))
    if not splits:
        return unsplit
    step_ms, split_bytes, split = min(splits, key=lambda priced: priced[:2])
    return dataclasses.replace(
        unsplit,
        split=f"{split.cluster.upper()} {split.row_shards} × {split.column_shards}",
        split_step_ms=step_ms,
        split_device_bytes=split_bytes,
    )


def _splits(placement: Placement, devices: int, per_node: int) -> Iterator[Placement]:
    """Yields finer splits of a table, with a shard for each device that has one."""
    for cluster in SHARDED:
        for rows, columns in ((devices, 1), (1, devices), (per_node, 1), (1, per_node)):
            if rows * columns > placement.row_shards * placement.column_shards:
                yield dataclasses.replace(
                    placement,
                    cluster=cluster,
                    row_shards=rows,
                    column_shards=columns,
                    devices=tuple(range(rows * columns)),
                )
