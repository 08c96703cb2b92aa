"""Why a table is placed as it is, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embark_jax.fleet import Fleet
from embark_jax.planner.cost import ProgramModel
from embark_jax.planner.memory import Memory
from embark_jax.planner.workload import Shape

NOTABLE = 1.05
"""A ratio from which on it explains something."""


def reason(
    chosen: Shape,
    owners: Sequence[int],
    others: Sequence[Shape],
    model: ProgramModel,
) -> str:
    """How a table is split, and what the other clusters would cost it by itself.

    Args:
      chosen: its shape.
      owners: of its shards.
      others: the best shape of each other cluster.
      model: the cost model.
    """
    why = [split(chosen, owners, model.workload.fleet)]
    mine, last = _demand(chosen, model), ""
    for other in others:
        compared = _comparison(mine, other, model)
        if compared is None:
            continue
        ratio, what = compared
        name = other.cluster.upper()
        if what == last:  # such as "…; DP would move 89× the bytes, UB 3.1×"
            why[-1] += f", {name} {ratio}"
        else:
            why.append(f"{name} {what.format(ratio)}")
        last = what
    return "; ".join(why)


def split(shape: Shape, owners: Sequence[int], fleet: Fleet) -> str:
    """Such as "row-wise inside a node"."""
    if shape.cluster == "dp":
        return "replicated"
    if shape.shards == 1:
        return "whole on one device"
    ways = [
        way
        for way, parts in (("row", shape.row_shards), ("column", shape.column_shards))
        if parts > 1
    ]
    devices = len(set(owners))
    nodes = len({owner // fleet.gpus_per_node for owner in owners})
    where = f"over {devices} devices" if devices > 1 else "on one device"
    if fleet.nodes > 1 and devices > 1:
        where = f"{where} of {nodes} nodes" if nodes > 1 else "inside a node"
    how = ", added up inside each" if nodes > 1 else ", added up there"
    added = shape.cluster == "rb" and shape.exchange == "hierarchical"
    level = ", dealt to level them" * bool(shape.row_loads)
    return f"{'- and '.join(ways)}-wise {where}{how * added}{level}"


def _comparison(
    mine: np.ndarray, other: Shape, model: ProgramModel
) -> tuple[str, str] | None:
    """How much the other shape has of what it has most of, compared with mine; and
    what that is. None if the other is faster by itself: then memory and balance of the
    whole plan are the reason, which two shapes do not show."""
    memory = Memory(model.workload)
    if other.cluster == "dp":
        needed_bytes = memory.replicated_bytes(other.use)
        if needed_bytes > memory.limit_bytes:
            return f"{needed_bytes / 1e9:.3g} GB", "would need {} on each device"
    theirs = _demand(other, model)
    with np.errstate(divide="ignore", invalid="ignore"):
        time, sent, touched = theirs / mine
    if time < 1:
        return None
    if sent >= NOTABLE and sent >= touched:
        return times(sent), "would move {} the bytes"
    if touched >= NOTABLE:
        return times(touched), "would touch {} the memory"
    return times(time), "would take {} the time"


def times(ratio: float) -> str:
    """Such as "1.4×", "29×", "1,200×"."""
    if np.isinf(ratio):
        return "∞×"
    if ratio >= 1000:
        ratio = round(ratio, -2)
    return f"{ratio:,.0f}×" if ratio >= 10 else f"{ratio:.2g}×"


def _demand(shape: Shape, model: ProgramModel) -> np.ndarray:
    """``(ms, bytes sent, bytes of memory touched)`` of a device on average, of one
    table by itself with all devices evenly loaded."""
    workload, devices = model.workload, model.workload.devices
    certain, expected = shape.sent_ids(workload)
    sent_ids = (certain + workload.capacity_slack * expected).sum()
    counts = {
        "storage": 1.0,
        "piece": shape.use.lanes * shape.shards / devices,
        "node_piece": shape.use.lanes
        * shape.column_shards
        * shape.nodes_each(workload.fleet.gpus_per_node)
        / workload.fleet.nodes,
        "id": sent_ids * shape.column_shards / devices,
    }
    parts = [(counts[unit], work) for unit, work in model.storage_work(shape.storage)]
    parts += [(1.0, work) for work in model.everywhere_work(shape)]
    parts += [
        (shape.column_shards * shape.row_shards / devices, work)
        for work in model.owner_work(shape)
    ]
    total = np.zeros(3)
    for count, work in parts:
        sent = model.link_bytes(work)
        ms, touched = np.mean(model.work_ms(work)), np.mean(work.memory_bytes)
        total += count * np.array([ms, sent.node_link + sent.network, touched])
    return total
