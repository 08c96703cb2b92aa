"""Reasons: why each table is placed as it is, in words."""

from __future__ import annotations

import numpy as np

from embark_jax.planner.cost.loads import (
    CERTAIN,
    CLUSTER_NAMES,
    EXPECTED,
    STORE_MS,
    PricedCandidates,
)
from embark_jax.planner.request.workload import TableUse
from embark_jax.planner.search.assignment import Assignment
from embark_jax.planner.search.instance import Instance
from embark_jax.planner.search.spread import spread_evenly
from embark_jax.plans.fleet import Fleet

NOTABLE = 1.1
"""Smallest ratio that is worth mentioning."""


def reasons(assignment: Assignment) -> list[str]:
    """Says for each table how it is split, and the cost of the other clusters for it
    alone, with all devices evenly loaded."""
    instance = assignment.instance
    candidates = instance.candidates
    fleet, ms = instance.workload.fleet, spread_evenly(instance).alone_ms
    dearer: list[dict[str, int]] = [{} for _ in instance.counts]
    for c in np.argsort(ms, kind="stable").tolist():
        dearer[candidates.table[c]].setdefault(CLUSTER_NAMES[candidates.cluster[c]], c)
    all_reasons = []
    for table, chosen in enumerate(assignment.candidate.tolist()):
        group = instance.group[table]
        how = split(candidates, chosen, assignment.owners[table], fleet)
        hot_rows = int(candidates.hot_rows[chosen])
        if hot_rows:
            how = f"all but {hot_rows:,} hot rows {how}"
        if fleet.devices == 1:
            how = "one device: nothing to exchange"
        if candidates.slots[chosen]:
            how = f"{in_slots(instance, instance.uses[group], chosen)}; {how}"
        if fleet.devices == 1:
            all_reasons.append(how)
        elif instance.forced[group].cluster is not None:
            all_reasons.append(f"forced, {how}")
        else:
            others = [
                f"{cluster.upper()} {times(float(ms[other] / ms[chosen]))}"
                for cluster, other in sorted(dearer[group].items())
                if cluster != CLUSTER_NAMES[candidates.cluster[chosen]]
                and ms[other] > NOTABLE * ms[chosen] > 0
            ]
            slower = "; alone it would take longer in " * bool(others)
            all_reasons.append(how + slower + ", ".join(others))
    return all_reasons


def in_slots(instance: Instance, use: TableUse, candidate: int) -> str:
    """Says how many rows are in slots, how many of a batch's rows are among them, and
    how long the others take to come to a device."""
    candidates, workload = instance.candidates, instance.workload
    storage = candidates.storages[candidates.storage[candidate]]
    slots = int(candidates.slots[candidate])
    hot_rows = int(candidates.hot_rows[candidate])
    cold = use.of_rows(hot_rows, use.rows)
    cold = cold.in_tier(storage.tier, slots)
    share = min(1.0, slots / cold.rows)
    sentence = f"slots for {share:.1%} of its rows in {storage.tier}"
    missed = cold.missed_rows(workload.batch_size) / workload.devices
    if not missed:
        return sentence
    hits = cold.hit_rate(workload.batch_size)
    shards = max(1, min(workload.devices, candidates.shards(candidate)))
    store_ms = candidates.shard_loads(candidate)[STORE_MS].sum()
    store_ms *= candidates.column_shards[candidate] / shards
    return (
        f"{sentence}, {hits:.0%} of those that a batch asks for; {missed:,.0f} rows a "
        f"step come to a device, in {store_ms:.2g} ms"
    )


def split(
    candidates: PricedCandidates, chosen: int, owners: np.ndarray, fleet: Fleet
) -> str:
    """Describes a split, such as "row-wise inside a node"."""
    if not len(owners):
        return "replicated"
    if len(owners) == 1:
        return "whole on one device"
    rows, columns = (
        int(candidates.row_shards[chosen]),
        int(candidates.column_shards[chosen]),
    )
    ways = [way for way, n in (("row", rows), ("column", columns)) if n > 1]
    devices = len(set(owners.tolist()))
    nodes = len(set((owners // fleet.gpus_per_node).tolist()))
    where = f"over {devices} devices" if devices > 1 else "on one device"
    if fleet.nodes > 1 and devices > 1:
        where = f"{where} of {nodes} nodes" if nodes > 1 else "inside a node"
    how = ""
    if candidates.pooled[chosen]:
        if candidates.staged[chosen]:
            how = ", added up inside each" if nodes > 1 else ", added up there"
        ids = candidates.shard_loads(chosen)[[CERTAIN, EXPECTED]].sum(axis=0)
        hottest = ids.max() / ids.mean()
        if hottest >= NOTABLE:
            how += f", the hottest {times(hottest)} the mean"
    return f"{'- and '.join(ways)}-wise {where}{how}"


def times(ratio: float) -> str:
    """Formats a ratio, such as "1.4×", "29×" or "1,200×"."""
    if ratio >= 1000:
        ratio = round(ratio, -2)
    return f"{ratio:,.0f}×" if ratio >= 10 else f"{ratio:.2g}×"
