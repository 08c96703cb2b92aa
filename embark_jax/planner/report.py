"""A plan as tables for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from embark_jax.planner.plan import Plan

BYTES_PER_PARAMETER = 4
MOST_OWNERS_LISTED = 8


def report(plan: Plan) -> Group:
    """Who holds what and why, and what each device has to do and to keep."""
    heading = Text(
        f"{len(plan.placements)} tables, {len(plan.features)} features on "
        f"{plan.nodes} × {plan.gpus_per_node} devices, batch {plan.batch_size:,}"
    )
    return Group(heading, *_prediction(plan), _tables(plan), _devices(plan))


def _prediction(plan: Plan) -> list[Text]:
    prediction = plan.prediction
    if prediction is None:
        return []
    return [
        Text(
            f"{prediction.step_ms:.3f} ms a step for the embeddings, "
            f"{max(prediction.device_bytes) / 1e9:.2f} GB a device (predicted, cost "
            f"model {prediction.cost_model}); at most {prediction.gap:.1%} above the "
            f"optimum of this cost model over the splits it considers (lower bound "
            f"{prediction.lower_bound_ms:.3f} ms)"
        )
    ]


def _tables(plan: Plan) -> Table:
    table = Table("table", "rows", "dim", "cluster", "shards", "devices", "why")
    for column in table.columns[1:3]:
        column.justify = "right"
    for placement in plan.placements:
        replicated = placement.cluster == "dp"
        shards = f"{placement.row_shards} × {placement.column_shards}"
        table.add_row(
            placement.table.name,
            f"{placement.table.rows:,}",
            str(placement.table.dim),
            placement.cluster.upper(),
            "–" if replicated else shards,
            "all" if replicated else _ranges(placement.devices),
            placement.reason,
        )
    return table


def _devices(plan: Plan) -> Table:
    lookups, megabytes = loads(plan)
    table = Table("over devices", "fullest", "mean", "imbalance")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, load in (("ids a sample", lookups), ("rows held, MB", megabytes)):
        mean = load.mean()
        imbalance = f"{load.max() / mean:.2f}" if mean else "–"
        table.add_row(name, f"{load.max():,.1f}", f"{mean:,.1f}", imbalance)
    return table


def loads(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """``([devices] ids a sample at most, [devices] MB of rows)`` of each device's own
    shards; replicated tables count for all."""
    lookups, megabytes = np.zeros(plan.devices), np.zeros(plan.devices)
    for placement in plan.placements:
        hotness = sum(
            f.hotness for f in plan.features if f.table == placement.table.name
        )
        for index, owner in enumerate(placement.devices):
            rows = placement.shard_rows(index // placement.column_shards)
            lookups[owner] += hotness / placement.row_shards
            megabytes[owner] += rows * placement.width * BYTES_PER_PARAMETER / 1e6
        if placement.cluster == "dp":
            lookups += hotness / plan.devices
            size = placement.table.rows * placement.table.dim * BYTES_PER_PARAMETER
            megabytes += size / 1e6
    return lookups, megabytes


def _ranges(devices: tuple[int, ...]) -> str:
    """Such as "0–3, 6"; an order that is not ascending is listed as it is."""
    if list(devices) != sorted(set(devices)):
        listed = ", ".join(map(str, devices[:MOST_OWNERS_LISTED]))
        return listed + (", …" if len(devices) > MOST_OWNERS_LISTED else "")
    runs: list[list[int]] = []
    for device in devices:
        if runs and device == runs[-1][-1] + 1:
            runs[-1].append(device)
        else:
            runs.append([device])
    return ", ".join(
        str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs
    )
