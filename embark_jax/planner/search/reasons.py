"""Reasons: why each table is placed as it is, in words."""

from __future__ import annotations

import numpy as np

from embark_jax.planner.cost.loads import CLUSTER_NAMES
from embark_jax.planner.search.assignment import Assignment
from embark_jax.planner.search.spread import spread_evenly
from embark_jax.plans.fleet import Fleet

NOTABLE = 1.1
"""Smallest ratio that is worth mentioning."""


def reasons(assignment: Assignment) -> list[str]:
    """Says for each table how it is split, and the cost of the other clusters for it
    alone, with all devices evenly loaded."""
    instance = assignment.instance
    candidates, fleet = instance.candidates, instance.workload.fleet
    ms = spread_evenly(instance).alone_ms
    best: list[dict[str, float]] = [{} for _ in instance.counts]
    for c in np.argsort(ms, kind="stable").tolist():  # the cheapest first
        best[candidates.table[c]].setdefault(
            CLUSTER_NAMES[candidates.cluster[c]], float(ms[c])
        )
    all_reasons = []
    for table, chosen in enumerate(assignment.candidate.tolist()):
        how = split(
            int(candidates.row_shards[chosen]),
            int(candidates.column_shards[chosen]),
            assignment.owners[table],
            fleet,
        )
        if hot_rows := int(candidates.hot_rows[chosen]):
            how = f"all but {hot_rows:,} hot rows {how}"
        if slots := int(candidates.slots[chosen]):
            storage = candidates.storages[candidates.storage[chosen]]
            cold_rows = instance.tables[table].rows - hot_rows
            share = min(1.0, slots / cold_rows)
            how = f"slots for {share:.1%} of its rows in {storage.tier}; {how}"
        if fleet.devices > 1:
            group = instance.group[table]
            if instance.forced[group].cluster is not None:
                how = f"forced, {how}"
            else:
                how += _slower(best[group], float(ms[chosen]))
        all_reasons.append(how)
    return all_reasons


def _slower(best: dict[str, float], ms: float) -> str:
    """Says which clusters would take notably longer than these ms."""
    others = [
        f"{cluster.upper()} {times(other / ms)}"
        for cluster, other in sorted(best.items())
        if other > NOTABLE * ms > 0
    ]
    slower = "; alone it would take longer in " * bool(others)
    return slower + ", ".join(others)


def split(rows: int, columns: int, owners: np.ndarray, fleet: Fleet) -> str:
    """Describes a split, such as "row-wise inside a node"."""
    if fleet.devices == 1:
        return "one device: nothing to exchange"
    if len(owners) < 2:
        return "whole on one device" if len(owners) else "replicated"
    axes = [axis for axis, n in (("row", rows), ("column", columns)) if n > 1]
    devices = len(set(owners.tolist()))
    nodes = len(set((owners // fleet.gpus_per_node).tolist()))
    where = f"over {devices} devices" if devices > 1 else "on one device"
    if fleet.nodes > 1 and devices > 1:
        where = f"{where} of {nodes} nodes" if nodes > 1 else "inside a node"
    return f"{'- and '.join(axes)}-wise {where}"


def times(ratio: float) -> str:
    """Formats a ratio, such as "1.4×", "29×" or "1,200×"."""
    if ratio >= 1000:
        ratio = round(ratio, -2)
    return f"{ratio:,.0f}×" if ratio >= 10 else f"{ratio:.2g}×"
