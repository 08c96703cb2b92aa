"""What candidates add to levels if they are spread evenly, and which are dominated."""

from __future__ import annotations

import numpy as np

from embark_jax.planner.cost import candidates as kinds
from embark_jax.planner.cost.objective import LEVEL_NODE, LEVEL_SUMS, LEVELS
from embark_jax.planner.search.instance import Instance


def levels_of(instance: Instance) -> tuple[np.ndarray, np.ndarray]:
    """``([rows, candidates] mean, [rows, candidates] largest)``: for each level of each
    storage, whether a storage is used, and time in the update."""
    each, objective = instance.candidates, instance.objective
    storages, devices = len(objective.storages), objective.devices
    gpus = instance.workload.fleet.gpus_per_node
    nodes = np.ceil(each.row_shards / gpus)  # on as few as go, each on another device
    ids = each.loads[kinds.CERTAIN] + objective.slack * each.loads[kinds.EXPECTED]
    loads = np.stack(
        [
            each.loads[kinds.SUMS],
            ids,
            each.loads[kinds.ROWS],
            each.loads[kinds.LOOKUP_MS],
            each.loads[kinds.GRADIENTS_MS],
            each.loads[kinds.UPDATE_MS],
        ]
    )
    total = each.reduced(np.add, loads) * each.column_shards / devices
    top = each.reduced(np.maximum, loads)
    rows = (len(LEVELS) + 1) * storages + 1
    mean, largest = np.zeros((2, rows, len(each)))
    number = np.arange(len(each))
    for level in LEVELS:
        if level != LEVEL_NODE:
            mean[level * storages + each.storage, number] = total[level]
            largest[level * storages + each.storage, number] = top[level]
    staged = np.flatnonzero(each.hierarchical)
    row = LEVEL_NODE * storages + each.storage[staged]
    on_nodes = nodes[staged] * each.column_shards[staged]
    mean[row, staged] = top[LEVEL_SUMS, staged] * on_nodes * gpus / devices
    largest[row, staged] = top[LEVEL_SUMS, staged]
    used = len(LEVELS) * storages
    largest[used + each.storage, number] = 1.0
    hot = np.flatnonzero(each.hot_rows)
    largest[used + each.hot_storage[hot], hot] = 1.0
    mean[-1], largest[-1] = total[-1], top[-1]
    return mean, largest


def undominated(
    instance: Instance,
    chosen: np.ndarray,
    mean: np.ndarray,
    largest: np.ndarray,
    touched_bytes: np.ndarray,
) -> np.ndarray:
    """``[chosen]`` whether none of the same group and storage is as good or better."""
    each, storages = instance.candidates, len(instance.objective.storages)
    s = each.storage[chosen]
    levels = np.arange(len(LEVELS))[:, None] * storages + s
    measures = np.concatenate(
        [
            mean[levels, chosen],
            largest[levels, chosen],
            mean[-1:, chosen],
            largest[-1:, chosen],
            each.everywhere_ms[None, chosen],
            each.everywhere_bytes[None, chosen],
            touched_bytes[None, chosen],
            each.hot_rows[None, chosen] > 0,  # which take another storage
        ]
    )
    keep = np.ones(len(chosen), bool)
    fixed = [owners is not None for owners in instance.owners]
    pairs = each.table[chosen] * storages + s
    order = np.argsort(pairs, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(pairs[order])) + 1):
        if len(members) == 1 or fixed[each.table[chosen[members[0]]]]:
            continue
        mine = measures[:, members]
        no_more = (mine[:, :, None] <= mine[:, None, :]).all(axis=0)
        # Of equals the first stays.
        equal = no_more & no_more.T
        before = np.tri(len(members), k=-1, dtype=bool).T
        keep[members] = ~(no_more & (~equal | before)).any(axis=0)
    return keep


def alone_ms(instance: Instance) -> np.ndarray:
    """``[candidates]`` time of a table by itself, spread evenly over the devices."""
    objective, each = instance.objective, instance.candidates
    mean, _ = levels_of(instance)
    fixed_ms = np.zeros_like(objective.fixed_ms)
    prices = np.concatenate([objective.prices.reshape(-1), fixed_ms, [1.0]])
    return each.everywhere_ms + prices @ mean
