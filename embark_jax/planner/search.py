"""The search for a plan: chooses a shape for every table, an owner for every shard.

The choice of shapes is that of a small program with whole numbers (``bound``), in which
shards have no place yet; it also bounds what any plan can reach. Greedy placing and
local search then give shards their owners and mend the choice where it packs badly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from embark_jax.planner.bound import Group, Program, Relaxation
from embark_jax.planner.candidates import (
    Candidate,
    ForcedPlacement,
    shapes,
    weigh,
)
from embark_jax.planner.cost import CostModel, ProgramModel
from embark_jax.planner.ledger import Ledger
from embark_jax.planner.memory import Memory
from embark_jax.planner.placing import Placing
from embark_jax.planner.plan import MAX_SLOTS
from embark_jax.planner.polish import POWERS, polish, rank
from embark_jax.planner.reasons import reason, split
from embark_jax.planner.storage import Cluster, Exchange, Placement
from embark_jax.planner.workload import TableUse, Workload, table_use
from embark_jax.tables import FeatureSpec, TableSpec

ROUNDS = 4
"""Of choosing shapes with whole numbers, each with more rules for shards."""
GOOD = 1.02
"""Times the lower bound: a plan this good is not improved."""
CROWDING = 0.3
"""Of a second choice in the first round, see ``Program.choose``."""
AGAIN = (POWERS, POWERS[2:]) * 2
"""With these powers the best plan of all rounds is polished once more: lower ones lead
farther away, higher ones are better where memory is tight."""
MAX_WHOLE = 4000
"""Candidates of all groups up to which whole numbers are solved for; above, a solution
with fractions is rounded, of which there are then few among the many tables."""
LIMIT = 1.05
"""Ratio of the limits of memory that are tried one after the other."""
MEMORY_PRICE = 0.05
"""What a device's fair share of the tables is taken to cost at first, in step times,
where memory is limited."""


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
        self.memory = memory = Memory(workload)
        uses = [table_use(table, features, workload) for table in tables]
        keys = list(zip(uses, self.forced, strict=True))
        self.members: dict[tuple[TableUse, ForcedPlacement], list[int]] = {}
        for i, key in enumerate(keys):
            self.members.setdefault(key, []).append(i)
        self.groups = [
            Group(len(members), self._candidates(*key, model, memory))
            for key, members in self.members.items()
        ]
        of_group = dict(zip(self.members, self.groups, strict=True))
        self.options = [of_group[key].candidates for key in keys]
        storages = {c.shape.storage for g in self.groups for c in g.candidates}
        self.empty = Ledger(sorted(storages), workload.devices, model, memory)
        self.program = Program(self.groups, self.empty)
        table_bytes = sum(use.rows * memory.row_bytes(use.dim) for use in uses)
        self.fair_share_bytes = table_bytes / workload.devices
        alone_ms = dict(
            zip(self.program.candidates, self.program.alone_ms(), strict=True)
        )
        self.alone_ms: dict[Candidate, float] = alone_ms

    def run(self) -> tuple[Placing, float]:
        """The best plan found, and the lower bound in ms.

        Raises:
          ValueError: if the tables do not fit.
        """
        placings, lower_bound_ms = self._search(np.inf)
        fitting = list(filter(self._fits, placings))
        if fitting:
            return min(fitting, key=step_ms), lower_bound_ms
        needed_bytes = self.program.least_bytes()
        if np.isfinite(lower_bound_ms):
            needed_bytes = min(p.ledger.bytes() for p in placings)
        if needed_bytes <= self.empty.limit_bytes:
            raise ValueError(
                f"a storage needs more than {MAX_SLOTS:,} slots on a device; what "
                "would help: more devices, or tables of different dims"
            )
        raise ValueError(self._shortage(needed_bytes))

    def relaxed_ms(self) -> float:
        """The bound that costs least: with fractions of tables, and any memory."""
        relaxed = self.program.relax(np.inf)
        return np.inf if relaxed is None else relaxed.lower_bound

    def improve(self, best_ms: float) -> tuple[Placing | None, float]:
        """A plan that is faster than ``best_ms``, if one is found, and the lower bound
        in ms of all that are."""
        placings, lower_bound_ms = self._search(best_ms)
        better = [p for p in placings if self._fits(p) and step_ms(p) < best_ms]
        return min(better, key=step_ms, default=None), lower_bound_ms

    def _search(self, best_ms: float) -> tuple[list[Placing], float]:
        """Plans, of which some may not fit, and the lower bound in ms, see ``improve``;
        infinite, if nothing fits."""
        # First as if memory were no matter: more of it then changes no plan that fits.
        placings, lower_bound_ms = self._rounds(np.inf, best_ms)
        if not placings or self._fits(min(placings, key=step_ms)):
            return placings, lower_bound_ms
        relaxed = self.program.relax(self.empty.limit_bytes)
        if relaxed is None:
            return placings, np.inf
        lower_bound_ms = max(lower_bound_ms, relaxed.lower_bound)
        for number, limit_bytes in enumerate(self._limits_bytes()):
            placings += self._rounds(limit_bytes, best_ms)[0]
            if number > 1 and any(map(self._fits, placings)):
                break
        return placings, lower_bound_ms

    def _limits_bytes(self) -> Iterator[float]:
        """Limits of memory to plan for, from the fleet's own downwards: what fits in
        less is a plan too. All but the first do not depend on the fleet's, so that most
        plans for a little less memory are tried as well."""
        limit_bytes, least_bytes = self.empty.limit_bytes, self.program.least_bytes()
        yield limit_bytes
        steps = np.log(limit_bytes / least_bytes) // np.log(LIMIT)
        for step in range(int(steps), -1, -1):
            yield least_bytes * LIMIT**step

    def _rounds(
        self,
        limit_bytes: float,
        best_ms: float,
    ) -> tuple[list[Placing], float]:
        """Plans, better and better, and the lower bound in ms; none, if nothing fits or
        is much faster than ``best_ms``.

        Args:
          limit_bytes: of memory on a device.
          best_ms: see ``improve``.
        """
        relaxed = self.program.relax(limit_bytes)
        if relaxed is None:
            return [], np.inf
        if best_ms <= GOOD * relaxed.lower_bound:
            return [], relaxed.lower_bound
        placings = self._place(relaxed, relaxed.lower_bound, limit_bytes)
        bound_ms = relaxed.lower_bound
        best_ms = min(best_ms, *map(step_ms, placings))
        rounds = ROUNDS if len(self.program.candidates) <= MAX_WHOLE else 0
        for number in range(rounds):
            whole = self.program.choose(limit_bytes, relaxed, best_ms)
            if whole is None:
                break
            bound_ms = max(bound_ms, whole.lower_bound)
            placings += self._place(whole, bound_ms, limit_bytes)
            if number == 0:
                crowded = self.program.choose(limit_bytes, relaxed, best_ms, CROWDING)
                if crowded is not None:
                    placings += self._place(crowded, bound_ms, limit_bytes)
            best_ms = min(best_ms, *map(step_ms, placings))
            if best_ms <= GOOD * bound_ms or not self.program.refine(whole):
                break
        best = min(placings, key=lambda placing: rank(placing, limit_bytes))
        if best_ms > GOOD * bound_ms:
            for powers in AGAIN:
                self._polish(best, limit_bytes, powers)
        return placings, min(bound_ms, best_ms, step_ms(best))

    def _fits(self, placing: Placing) -> bool:
        """Whether memory suffices, and slots can be numbered."""
        ledger = placing.ledger
        numbered = ledger.rows.max(initial=0) <= MAX_SLOTS
        return numbered and ledger.bytes() <= self.empty.limit_bytes

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

    def _place(
        self,
        choice: Relaxation,
        lower_bound_ms: float,
        limit_bytes: float,
    ) -> list[Placing]:
        """Placed and polished."""
        chosen: list[Candidate] = [options[0] for options in self.options]
        for members, group, counts in zip(
            self.members.values(), self.groups, choice.counts, strict=True
        ):
            taken = np.repeat(np.arange(len(counts)), _rounded(counts, group.count))
            for i, candidate in zip(members, taken, strict=True):
                chosen[i] = group.candidates[int(candidate)]
        owners = [force.devices for force in self.forced]
        price = MEMORY_PRICE if np.isfinite(limit_bytes) else 0.0
        placing = Placing(self.empty, price * lower_bound_ms / self.fair_share_bytes)
        placing.place(chosen, owners)
        self._polish(placing, limit_bytes)
        return [placing]

    def _polish(
        self, placing: Placing, limit_bytes: float, powers: Sequence[int] = POWERS
    ) -> None:
        movable = [force.devices is None for force in self.forced]
        polish(placing, self.options, movable, limit_bytes, powers)

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

    def _shortage(self, needed_bytes: float) -> str:
        """What is short, by how much, where, and what would make it fit."""
        forced = any(force != ForcedPlacement() for force in self.forced)
        return self.memory.shortage(needed_bytes, self.fair_share_bytes, forced)


def step_ms(placing: Placing) -> float:
    """Predicted, of a step."""
    return placing.ledger.step_ms()


def _rounded(counts: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers that sum to ``total``, the largest remainders rounded up."""
    whole = np.floor(counts + 1e-6).astype(int)
    order = np.argsort(whole - counts, kind="stable")
    whole[order[: total - whole.sum()]] += 1
    return whole
