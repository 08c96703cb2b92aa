"""Assignments: a candidate and owners for every table, with what they add up to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from embark_jax.planner.cost.candidates import CLUSTERS, EXCHANGES, ROWS
from embark_jax.planner.cost.objective import Loads
from embark_jax.planner.layout.plan import MAX_SLOTS
from embark_jax.planner.layout.storage import Placement
from embark_jax.planner.search.instance import Instance


class Rank(NamedTuple):
    """What assignments are compared by: the lower is the better one.

    Attributes:
      excess_bytes: memory beyond the limit, on every device, and a byte for each slot
        beyond those that can be numbered; 0 if it fits.
      step_ms: of a step.
    """

    excess_bytes: float
    step_ms: float


class Assignment:
    """A plan, to the search.

    Attributes:
      candidate: ``[tables]`` that each takes.
      owners: of each table; shard (j, k) is at ``j * column_shards + k``.
      loads: of all tables that are in.
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
        """An assignment of its own, whose loads are added up anew, without rounding
        errors of what was taken out."""
        other = Assignment(self.instance, self.candidate)
        for table, owners in enumerate(self.owners):
            other.put(table, int(self.candidate[table]), owners)
        return other

    def step_ms(self) -> float:
        return self.instance.objective.step_ms(self.loads)

    def rank(self) -> Rank:
        """What it is compared by."""
        limit_bytes = self.instance.memory.limit_bytes
        excess_bytes = self.instance.objective.bytes(self.loads) - limit_bytes
        excess_slots = float(self.loads.own[ROWS].max()) - MAX_SLOTS
        return Rank(max(0.0, excess_bytes) + max(0.0, excess_slots), self.step_ms())

    def fits(self) -> bool:
        """Whether memory suffices, and slots can be numbered."""
        return not self.rank().excess_bytes

    def placements(self, reasons: Sequence[str]) -> tuple[Placement, ...]:
        """Those that a plan is made of."""
        each = self.instance.candidates
        return tuple(
            Placement(
                table,
                CLUSTERS[each.cluster[c]],
                int(each.row_shards[c]),
                int(each.column_shards[c]),
                tuple(map(int, owners)),
                EXCHANGES[each.exchange[c]],
                reason,
                int(each.hot_rows[c]),
                self.instance.workload.statistics.hot_ids(table, int(each.hot_rows[c])),
            )
            for table, c, owners, reason in zip(
                self.instance.tables,
                self.candidate,
                self.owners,
                reasons,
                strict=True,
            )
        )
