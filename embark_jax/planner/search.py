"""One request as the search sees it: alike tables, what each may become, and how a
choice of shapes becomes a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from embark_jax.planner.box import Group, Solution
from embark_jax.planner.candidates import (
    Candidate,
    ForcedPlacement,
    shapes,
    weigh,
)
from embark_jax.planner.cost import CostModel, ProgramModel
from embark_jax.planner.exchanges import exchange_shards
from embark_jax.planner.ledger import Ledger
from embark_jax.planner.levelling import Levelling
from embark_jax.planner.lines import least_bytes
from embark_jax.planner.memory import Memory
from embark_jax.planner.menu import Menu
from embark_jax.planner.placing import Placing
from embark_jax.planner.plan import MAX_SLOTS
from embark_jax.planner.polish import (
    HIGH_POWERS,
    LOW_POWERS,
    close_storages,
    polish,
    rank,
)
from embark_jax.planner.program import Program
from embark_jax.planner.reasons import reason, split
from embark_jax.planner.rounding import rounded
from embark_jax.planner.storage import Cluster, Exchange, Placement
from embark_jax.planner.workload import TableUse, Workload, table_use
from embark_jax.tables import FeatureSpec, TableSpec

BEGINNINGS = LOW_POWERS[2:], LOW_POWERS
"""Powers of smooth costs that plans begin with, in turn: lower ones lead farther away
from the choice of shapes."""
PROMISING_POWERS = (64,)
"""Of smooth costs, for promising plans, whose devices are levelled anyway."""
FEW = 1 / 8
"""Share of all tables that a storage may have to be closed in promising plans."""
LIMIT = 1.05
"""Ratio of the limits of memory that are tried one after the other."""
MEMORY_PRICES = (0.05, 0.5)
"""What a device's fair share of the tables is taken to cost at first, in step times,
where memory is limited; tried in turn."""


class Search:
    """The search for one request."""

    def __init__(
        self,
        tables: Sequence[TableSpec],
        features: Sequence[FeatureSpec],
        forced: Mapping[str, ForcedPlacement],
        workload: Workload,
        model: CostModel,
        exchange: Exchange = "flat",
    ):
        """
        Args:
          tables, features, forced: as for ``plan``.
          workload, model: what is planned for, and what prices it.
          exchange: of all tables in RB, where it is not forced.
        """
        self.exchange: Exchange = exchange
        self.tables, self.workload, self.model = tables, workload, model
        self.forced = [forced.get(t.name, ForcedPlacement()) for t in tables]
        self._movable = [force.devices is None for force in self.forced]
        self.memory = memory = Memory(workload)
        self.levelling = Levelling(workload, model, memory)
        uses = [table_use(table, features, workload) for table in tables]
        keys = list(zip(uses, self.forced, strict=True))
        self.members: dict[tuple[TableUse, ForcedPlacement], list[int]] = {}
        for i, key in enumerate(keys):
            self.members.setdefault(key, []).append(i)
        self.groups = [
            Group(
                len(members),
                self._candidates(*key, model, memory),
                placed=key[1].devices is not None,
            )
            for key, members in self.members.items()
        ]
        of_group = dict(zip(self.members, self.groups, strict=True))
        self.options = [of_group[key].candidates for key in keys]
        storages = {c.shape.storage for g in self.groups for c in g.candidates}
        self.empty = Ledger(sorted(storages), workload.devices, model, memory)
        menus = {
            key: Menu(group.candidates, self.empty) for key, group in of_group.items()
        }
        self.menus = [menus[key] for key in keys]
        self.program = Program(self.groups, self.empty)
        table_bytes = sum(use.rows * memory.row_bytes(use.dim) for use in uses)
        self.fair_share_bytes = table_bytes / workload.devices
        alone_ms = dict(
            zip(self.program.candidates, self.program.alone_ms(), strict=True)
        )
        self.alone_ms: dict[Candidate, float] = alone_ms

    def fits(self, placing: Placing) -> bool:
        """Whether memory suffices, and slots can be numbered."""
        ledger = placing.ledger
        numbered = ledger.rows.max(initial=0) <= MAX_SLOTS
        return numbered and ledger.bytes() <= self.empty.limit_bytes

    def limits_bytes(self) -> Iterator[float]:
        """Limits of memory to plan for, from a little below the fleet's downwards: what
        fits in less is a plan too. They do not depend on the fleet's own, so that most
        plans for a little less memory are tried as well."""
        lowest_bytes = least_bytes(self.program)
        steps = np.log(self.empty.limit_bytes / lowest_bytes) // np.log(LIMIT)
        for step in range(int(steps), -1, -1):
            yield lowest_bytes * LIMIT**step

    def placements(self, placing: Placing) -> tuple[Placement, ...]:
        """Those that the plan is made of."""
        return tuple(
            Placement(
                table,
                candidate.shape.cluster,
                candidate.shape.row_shards,
                candidate.shape.column_shards,
                tuple(map(int, owners)),
                candidate.shape.exchange,
                candidate.shape.row_loads,
                self._reason(i, candidate, owners.tolist()),
            )
            for i, (table, candidate, owners) in enumerate(
                zip(self.tables, placing.candidates, placing.owners, strict=True)
            )
        )

    def _candidates(
        self, use: TableUse, force: ForcedPlacement, model: CostModel, memory: Memory
    ) -> list[Candidate]:
        """Those whose shards a storage can number; all, if there is none."""
        found = [
            weigh(shape, self.workload, model, memory)
            for shape in shapes(
                use, force, self.workload.devices, model.clusters, self.exchange
            )
        ]
        return [c for c in found if c.rows.max(initial=0) <= MAX_SLOTS] or found

    def place(self, choice: Solution, limit_bytes: float, number: int) -> Placing:
        """Placed, and polished with low powers.

        Args:
          choice: of shapes.
          limit_bytes: of memory on a device.
          number: of the plan; each goes another way.
        """
        chosen = list(self.menus)
        for g, members in enumerate(self.members.values()):
            counts = choice.tables[self.program.group == g]
            taken = np.repeat(np.arange(len(counts)), rounded(counts, len(members)))
            menu = self.menus[members[0]]
            alone = {int(c): menu.only(np.array([c])) for c in np.unique(taken)}
            for i, c in zip(members, taken.tolist(), strict=True):
                chosen[i] = alone[c]
        owners = [force.devices for force in self.forced]
        price = MEMORY_PRICES[number % len(MEMORY_PRICES)]
        price = price if np.isfinite(limit_bytes) else 0.0
        ms_per_byte = price * choice.bound_ms / self.fair_share_bytes
        placing = Placing(self.empty, ms_per_byte, seed=number)
        placing.place(chosen, owners)
        self._polish(placing, limit_bytes, BEGINNINGS[number % len(BEGINNINGS)])
        return placing

    def improve(self, placing: Placing, limit_bytes: float) -> None:
        """Makes a promising plan no worse."""
        few = int(FEW * len(self.tables))
        close_storages(placing, self.menus, self._movable, limit_bytes, few)
        self._polish(placing, limit_bytes, PROMISING_POWERS)

    def finish(self, placing: Placing, limit_bytes: float) -> None:
        """Makes it no worse by all that is known."""
        close_storages(placing, self.menus, self._movable, limit_bytes)
        for powers in reversed(BEGINNINGS):
            self._polish(placing, limit_bytes, powers + HIGH_POWERS)
        best, best_rank = placing.entries(), rank(placing, limit_bytes)
        exchange_shards(placing, self._movable)
        if rank(placing, limit_bytes) >= best_rank:
            placing.enter(best)

    def _polish(
        self, placing: Placing, limit_bytes: float, powers: Sequence[int]
    ) -> None:
        polish(placing, self.menus, self._movable, limit_bytes, powers)

    def _reason(self, i: int, chosen: Candidate, owners: Sequence[int]) -> str:
        """How it is split, and how the best of other clusters compare."""
        if self.workload.devices == 1:
            return "one device: nothing to exchange"
        if self.forced[i].cluster is not None:
            return f"forced, {split(chosen.shape, owners, self.workload.fleet)}"
        if not isinstance(self.model, ProgramModel):
            return split(chosen.shape, owners, self.workload.fleet)
        best: dict[Cluster, Candidate] = {}
        for option in sorted(self.options[i], key=self.alone_ms.__getitem__):
            best.setdefault(option.shape.cluster, option)
        best.pop(chosen.shape.cluster)
        others = [option.shape for _, option in sorted(best.items())]
        return reason(chosen.shape, owners, others, self.model)

    def shortage(self, needed_bytes: float) -> str:
        """What is short, by how much, where, and what would make it fit."""
        forced = any(force != ForcedPlacement() for force in self.forced)
        return self.memory.shortage(needed_bytes, self.fair_share_bytes, forced)
