"""Assignments: a candidate and owners for every table, with the sums of their loads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from embark_jax.planner.cost.loads import (
    CLUSTER_NAMES,
    EXCHANGE_NAMES,
    ROWS,
    Loads,
)
from embark_jax.planner.search.instance import Instance
from embark_jax.plans.plan import MAX_SLOTS
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import TableSpec


class Rank(NamedTuple):
    """The order of assignments: the lower rank is the better one.

    Attributes:
      excess_bytes: memory beyond the limit, on every device, in host memory and on
        disks of every node, and a byte for each slot beyond those that have numbers; 0
        if the assignment fits.
      step_ms: time of a step.
    """

    excess_bytes: float
    step_ms: float


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
        """Returns an independent copy, whose loads are added up anew, without rounding
        errors of tables that were taken out."""
        other = Assignment(self.instance, self.candidate)
        for table, owners in enumerate(self.owners):
            other.put(table, int(self.candidate[table]), owners)
        return other

    def step_ms(self) -> float:
        return self.instance.objective.step_ms(self.loads)

    def rank(self) -> Rank:
        """Returns the rank by which the assignment is compared."""
        memory, objective = self.instance.memory, self.instance.objective
        stored = objective.stored_bytes(self.loads) - memory.stored_limit_bytes
        excesses = (
            objective.bytes(self.loads) - memory.limit_bytes,
            float(self.loads.own[ROWS].max()) - MAX_SLOTS,
            *stored.tolist(),
        )
        return Rank(sum(max(0.0, excess) for excess in excesses), self.step_ms())

    def fits(self) -> bool:
        """Whether memory suffices, and all slots have numbers."""
        return not self.rank().excess_bytes

    def _settled(self, table: TableSpec, candidate: int) -> TableSpec:
        """Returns the table with the tier and the slots of a candidate."""
        candidates = self.instance.candidates
        storage = candidates.storages[candidates.storage[candidate]]
        slots = int(candidates.slots[candidate]) or None
        return dataclasses.replace(table, tier=storage.tier, slots=slots)

    def placements(self, reasons: Sequence[str]) -> tuple[Placement, ...]:
        """Returns the placements of a plan."""
        candidates = self.instance.candidates
        return tuple(
            Placement(
                self._settled(table, int(c)),
                CLUSTER_NAMES[candidates.cluster[c]],
                int(candidates.row_shards[c]),
                int(candidates.column_shards[c]),
                tuple(map(int, owners)),
                EXCHANGE_NAMES[candidates.exchange[c]],
                reason,
                int(candidates.hot_rows[c]),
            )
            for table, c, owners, reason in zip(
                self.instance.tables,
                self.candidate,
                self.owners,
                reasons,
                strict=True,
            )
        )
