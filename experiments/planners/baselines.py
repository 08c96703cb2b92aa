"""Simple planners to compare with, each ``(tables, features, workload) -> placements``.

All of them shard one way: owners pool what they own (RB), as in the systems they come
from. What does not fit the devices shows when it is priced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from embark_jax.planner import Workload
from embark_jax.planner.cost.memory import Memory
from embark_jax.planner.request.workload import TableUse, table_uses
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec

Tables = Sequence[TableSpec]
Features = Sequence[FeatureSpec]
Placements = tuple[Placement, ...]
Planner = Callable[[Tables, Features, Workload], Placements]


def round_robin(tables: Tables, features: Features, workload: Workload) -> Placements:
    """Whole tables, one device after the other."""
    return tuple(
        Placement(table, "rb", devices=(i % workload.devices,))
        for i, table in enumerate(tables)
    )


def row_wise(tables: Tables, features: Features, workload: Workload) -> Placements:
    """Every table over all devices by rows."""
    return tuple(rows_over(table, range(workload.devices)) for table in tables)


def table_row_wise(
    tables: Tables, features: Features, workload: Workload
) -> Placements:
    """One node after the other takes a table, whose rows lie on all its devices: the
    baseline of EMBark's ablation."""
    fleet = workload.fleet
    nodes = np.arange(fleet.devices).reshape(fleet.nodes, fleet.gpus_per_node)
    return tuple(
        rows_over(table, nodes[i % fleet.nodes].tolist())
        for i, table in enumerate(tables)
    )


def rows_over(table: TableSpec, devices: Sequence[int]) -> Placement:
    """A row shard for each of ``devices``, as far as the rows go."""
    owners = tuple(devices)[: table.rows]
    return Placement(table, "rb", len(owners), devices=owners)


def greedy(weight: Callable[[TableUse], float]) -> Planner:
    """Whole tables, the heaviest first, each to the device with the least weight among
    those that have room for it, or among all.

    Args:
      weight: of a table.
    """

    def plan(tables: Tables, features: Features, workload: Workload) -> Placements:
        memory = Memory(workload)
        uses = table_uses(tables, features, workload)
        weights = [weight(use) for use in uses]
        loads = np.zeros(workload.devices)
        room_bytes = np.full(workload.devices, memory.limit_bytes)
        owners = [0] * len(tables)
        for i in sorted(range(len(tables)), key=lambda i: (-weights[i], i)):
            table_bytes = uses[i].rows * memory.row_bytes(uses[i].dim)
            fits = room_bytes >= table_bytes
            allowed = fits if fits.any() else np.ones_like(fits)
            owners[i] = int(np.where(allowed, loads, np.inf).argmin())
            loads[owners[i]] += weights[i]
            room_bytes[owners[i]] -= table_bytes
        return tuple(
            Placement(table, "rb", devices=(owner,))
            for table, owner in zip(tables, owners, strict=True)
        )

    return plan


def lookups(use: TableUse) -> float:
    """Parameters that a sample reads."""
    return use.hotness * use.dim


BASELINES: dict[str, Planner] = {
    "table-row-wise": table_row_wise,
    "row-wise": row_wise,
    "round robin": round_robin,
    "greedy by size": greedy(lambda use: use.rows * use.dim),
    "greedy by lookups": greedy(lookups),
    "greedy by size × lookups": greedy(lambda use: use.rows * lookups(use)),
}
"""HugeCTR offers the first three (benchmarks/embedding_collection, hugectr/sharding),
row-wise as "uniform"; the greedy ones are those that DreamShard is compared with
(https://arxiv.org/abs/2210.02023)."""
