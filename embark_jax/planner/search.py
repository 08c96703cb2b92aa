"""The search for a plan: chooses a shape for every table, an owner for every shard.

The choice of shapes is that of a linear program (``lines``), in which shards have no
place yet; it also bounds what any plan can reach. Greedy placing and local search then
give shards their owners and mend the choice where it packs badly. Branch and bound
(``tree``) makes ever closer choices of it.
"""

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
from embark_jax.planner.ledger import Ledger
from embark_jax.planner.lines import least_bytes, solve
from embark_jax.planner.memory import Memory
from embark_jax.planner.placing import Placing
from embark_jax.planner.plan import MAX_SLOTS
from embark_jax.planner.polish import POWERS, polish, rank
from embark_jax.planner.program import Program
from embark_jax.planner.reasons import reason, split
from embark_jax.planner.storage import Cluster, Exchange, Placement
from embark_jax.planner.tree import GOOD, Node, Tree
from embark_jax.planner.workload import TableUse, Workload, table_use
from embark_jax.tables import FeatureSpec, TableSpec

AGAIN = (POWERS, POWERS[2:]) * 2
"""With these powers the best plan is polished once more: lower ones lead farther away,
higher ones are better where memory is tight."""
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
        self.memory = memory = Memory(workload)
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
        """Placed and polished.

        Args:
          choice: of shapes.
          limit_bytes: of memory on a device.
          number: of the plan; each goes another way.
        """
        chosen: list[Candidate] = [options[0] for options in self.options]
        for g, (members, group) in enumerate(
            zip(self.members.values(), self.groups, strict=True)
        ):
            counts = choice.tables[self.program.group == g]
            taken = np.repeat(np.arange(len(counts)), _rounded(counts, group.count))
            for i, candidate in zip(members, taken, strict=True):
                chosen[i] = group.candidates[int(candidate)]
        owners = [force.devices for force in self.forced]
        price = MEMORY_PRICES[number % len(MEMORY_PRICES)]
        price = price if np.isfinite(limit_bytes) else 0.0
        ms_per_byte = price * choice.bound_ms / self.fair_share_bytes
        placing = Placing(self.empty, ms_per_byte, seed=number)
        placing.place(chosen, owners)
        self.polish(placing, limit_bytes, exchanges=False)
        return placing

    def polish(
        self,
        placing: Placing,
        limit_bytes: float,
        powers: Sequence[int] = POWERS,
        exchanges: bool = True,
    ) -> None:
        """Makes it no worse."""
        movable = [force.devices is None for force in self.forced]
        polish(placing, self.options, movable, limit_bytes, powers, exchanges)

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


Found = tuple[Search, Placing]
"""A plan, and whose it is."""


def best_plan(searches: Sequence[Search]) -> tuple[Search, Placing, float]:
    """The best plan of some searches for one request, whose it is, and the lower bound
    in ms of the plans of all.

    Raises:
      ValueError: if the tables do not fit.
    """
    limit_bytes = searches[0].empty.limit_bytes
    found, bound_ms = _without_limit(searches), 0.0
    if all(map(_fits, found)):
        # As if memory were no matter: more of it then changes no plan that fits.
        found, bound_ms = _explore(searches, np.inf)
    if not found or not _fits(_best(found)):
        limited, limited_ms = _explore(searches, limit_bytes)
        found, bound_ms = found + limited, max(bound_ms, limited_ms)
        if np.isfinite(limited_ms):
            found += _with_less_memory(searches)
    fitting = list(filter(_fits, found))
    if fitting:
        return *_best(fitting), bound_ms
    needed_bytes = min(least_bytes(search.program) for search in searches)
    if np.isfinite(bound_ms):
        needed_bytes = min(placing.ledger.bytes() for _, placing in found)
    if needed_bytes <= searches[0].empty.limit_bytes:
        raise ValueError(
            f"a storage needs more than {MAX_SLOTS:,} slots on a device; what would "
            "help: more devices, or tables of different dims"
        )
    raise ValueError(searches[0].shortage(needed_bytes))


def _explore(
    searches: Sequence[Search], limit_bytes: float
) -> tuple[list[Found], float]:
    """Plans, of which some may need more memory, and the lower bound in ms; infinite,
    if nothing fits."""
    tree = Tree([search.program for search in searches], limit_bytes)
    found: list[Found] = []
    known: set[tuple[int, bytes]] = set()

    def place(node: Node) -> float:
        search = searches[node.search]
        choice = node.search, np.round(node.solution.tables, 6).tobytes()
        if choice in known:
            return np.inf
        known.add(choice)
        placing = search.place(node.solution, limit_bytes, len(found))
        found.append((search, placing))
        fits = placing.ledger.bytes() <= limit_bytes
        return step_ms(placing) if fits else np.inf

    tree.explore(place)
    if not found:
        return found, np.inf
    search, best = min(found, key=lambda each: rank(each[1], limit_bytes))
    for powers in AGAIN:
        if step_ms(best) > GOOD * tree.bound_ms:
            search.polish(best, limit_bytes, powers)
    return found, min(tree.bound_ms, step_ms(best))


def _without_limit(searches: Sequence[Search]) -> list[Found]:
    """A plan of the most promising search, as if memory were no matter."""
    choices = [solve(s.program, s.program.whole_box()) for s in searches]
    promising = [
        (choice.bound_ms, number, search, choice)
        for number, (search, choice) in enumerate(zip(searches, choices, strict=True))
        if choice is not None
    ]
    if not promising:
        return []
    _, _, search, choice = min(promising)
    return [(search, search.place(choice, np.inf, 0))]


def _with_less_memory(searches: Sequence[Search]) -> Iterator[Found]:
    """Plans for ever less memory, two at least of each search, until one fits."""
    for search in searches:
        for number, limit_bytes in enumerate(search.limits_bytes()):
            choice = solve(search.program, search.program.whole_box(), limit_bytes)
            if choice is None:
                break
            placing = search.place(choice, limit_bytes, number)
            yield search, placing
            if number > 0 and search.fits(placing):
                break


def _fits(found: Found) -> bool:
    search, placing = found
    return search.fits(placing)


def _best(found: Sequence[Found]) -> Found:
    return min(found, key=lambda each: step_ms(each[1]))


def step_ms(placing: Placing) -> float:
    """Predicted, of a step."""
    return placing.ledger.step_ms()


def _rounded(counts: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers that sum to ``total``, the largest remainders rounded up."""
    whole = np.floor(counts + 1e-6).astype(int)
    order = np.argsort(whole - counts, kind="stable")
    whole[order[: total - whole.sum()]] += 1
    return whole
