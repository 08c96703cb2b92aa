"""Assignments: a candidate and owners for every table, with the sums of their loads."""

from __future__ import annotations

import dataclasses

import numpy as np

from embark_jax.planner.cost.candidates import CLUSTER_NAMES, EXCHANGE_NAMES, Load
from embark_jax.planner.cost.loads import Loads
from embark_jax.planner.search.instance import Instance
from embark_jax.plans.placement import Placement
from embark_jax.plans.plan import MAX_SLOTS
from embark_jax.plans.tables import TableSpec


class Assignment:
    """The search's form of a plan.

    Attributes:
      candidate: ``[tables]`` candidate that each takes.
      owners: owners of each table; shard (j, k) is at ``j * column_shards + k``.
      loads: loads of all tables that are in.
    """

    def __init__(self, instance: Instance, candidate: np.ndarray):
        """None of the tables is in yet."""
        self.instance, self.candidate = instance, candidate.copy()
        self.owners: list[np.ndarray] = [np.zeros(0, np.int64)] * len(candidate)
        self.loads = Loads(instance.candidates, instance.workload)

    def put(self, table: int, candidate: int, owners: np.ndarray) -> None:
        """Puts a table in."""
        self.candidate[table], self.owners[table] = candidate, owners
        self.loads.add(candidate, owners)

    def take(self, table: int) -> None:
        """Takes a table out."""
        self.loads.add(int(self.candidate[table]), self.owners[table], times=-1)

    def copy(self) -> Assignment:
        """Returns an independent copy."""
        other = Assignment(self.instance, self.candidate)
        other.owners, other.loads = self.owners.copy(), self.loads.copy()
        return other

    def anew(self) -> Assignment:
        """Returns a copy whose loads are added up anew, without rounding errors of
        tables that were taken out."""
        other = Assignment(self.instance, self.candidate)
        for table, owners in enumerate(self.owners):
            other.put(table, int(self.candidate[table]), owners)
        return other

    def step_ms(self) -> float:
        return self.instance.objective.step_ms(self.loads)

    def bytes(self) -> float:
        """Returns the bytes on every device."""
        return self.instance.objective.bytes(self.loads)

    def rank(self) -> tuple[float, float]:
        """Returns ``(excess bytes, step ms)``, by which assignments are compared:
        memory beyond the limit, on every device, in host memory and on disks of every
        node, and a byte for each slot beyond those that have numbers; then the step."""
        memory, objective = self.instance.memory, self.instance.objective
        stored = objective.stored_bytes(self.loads) - memory.stored_limit_bytes
        excesses = (
            self.bytes() - memory.limit_bytes,
            float(self.loads.own[Load.ROWS].max()) - MAX_SLOTS,
            *stored.tolist(),
        )
        return sum(max(0.0, excess) for excess in excesses), self.step_ms()

    def fits(self) -> bool:
        """Whether memory suffices, and all slots have numbers."""
        return not self.rank()[0]

    def tables(self) -> list[TableSpec]:
        """Returns the tables, each in its tier."""
        return [placement.table for placement in self.placements()]

    def placements(self) -> tuple[Placement, ...]:
        """Returns the placements of a plan."""
        return tuple(map(self._placement, range(len(self.owners))))

    def _placement(self, table: int) -> Placement:
        candidates, c = self.instance.candidates, int(self.candidate[table])
        tier = candidates.storages[candidates.storage[c]].tier
        slots = int(candidates.slots[c]) or None
        return Placement(
            dataclasses.replace(self.instance.tables[table], tier=tier, slots=slots),
            CLUSTER_NAMES[candidates.cluster[c]],
            int(candidates.row_shards[c]),
            int(candidates.column_shards[c]),
            tuple(map(int, self.owners[table])),
            EXCHANGE_NAMES[candidates.exchange[c]],
            int(candidates.hot_rows[c]),
        )
