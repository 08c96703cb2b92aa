"""Makes a plan: chooses a shape for every table and an owner for every shard.

The choice of shapes is that of a small program with whole numbers (``bound``), in which
shards have no place yet; it also bounds what any plan can reach. Greedy placing and
local search then give shards their owners and mend the choice where it packs badly.
On several nodes this is done with a flat and with a hierarchical exchange of RB, as the
bound is loose where tables may mix them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from embark_jax.fleet import Fleet
from embark_jax.planner.access import NO_STATISTICS, Statistics
from embark_jax.planner.bound import Group, Program, Relaxation
from embark_jax.planner.breakdown import break_down
from embark_jax.planner.candidates import (
    MIN_WIDTH,
    Candidate,
    ForcedPlacement,
    forced_problems,
    shapes,
    weigh,
)
from embark_jax.planner.capacities import capacities
from embark_jax.planner.cost import CostModel, EmbarkModel, ProgramModel
from embark_jax.planner.ledger import Ledger
from embark_jax.planner.memory import Memory
from embark_jax.planner.placing import Placing
from embark_jax.planner.plan import MAX_SLOTS, Plan
from embark_jax.planner.polish import polish
from embark_jax.planner.prediction import Prediction
from embark_jax.planner.reasons import reason, split
from embark_jax.planner.storage import Cluster, Exchange, Placement, StorageKind
from embark_jax.planner.wire import FLOAT32, Wire
from embark_jax.planner.workload import TableUse, Workload, table_use
from embark_jax.tables import FeatureSpec, TableSpec, check_model

ROUNDS = 4
"""Of choosing shapes with whole numbers, each with more rules for shards."""
GOOD = 1.02
"""Times the lower bound: a plan this good is not improved."""
CROWDING = 0.3
"""Of a second choice in the first round, see ``Program.choose``."""
MAX_WHOLE = 4000
"""Candidates of all groups up to which whole numbers are solved for; above, a solution
with fractions is rounded, of which there are then few among the many tables."""
LIMIT = 1.05
"""Ratio of the limits of memory that are tried one after the other."""
MEMORY_PRICES = (0.0, 0.05, 0.5, 5.0, 50.0)
"""What a device's fair share of the tables is taken to cost, in step times: the first
at which the plan fits is taken."""


def plan(
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    fleet: Fleet,
    batch: int,
    *,
    forced: Mapping[str, ForcedPlacement] | None = None,
    zipf_exponent: float = 0.0,
    capacity_slack: float = 1.25,
    optimizer: str = "rowwise_adagrad",
    cost_model: str | CostModel = "program",
    statistics: Statistics = NO_STATISTICS,
    wire: Wire = FLOAT32,
) -> Plan:
    """Places every table on the fleet.

    Args:
      tables, features: the model.
      fleet: the machines.
      batch: global batch size, samples a step.
      forced: by table name, what is not the planner's to choose.
      zipf_exponent: skew of ids within their table; 0 is uniform.
      capacity_slack: exchange buffers hold this multiple of the expectation.
      optimizer: of the embedding rows; its state takes memory beside them.
      cost_model: "program" prices what the compiled step moves, "embark" is EMBark's
        published formula; or a model of your own.
      statistics: of a sample of the data; ``zipf_exponent`` is then for the tables that
        are not in it.
      wire: the formats in which rows and gradients travel.

    Raises:
      ValueError: if the model is inconsistent, a forced placement impossible, the
        statistics are of another model, or the tables do not fit the fleet.
    """
    workload = Workload(
        fleet, batch, zipf_exponent, capacity_slack, optimizer, statistics, wire
    )
    return plan_for(workload, tables, features, forced=forced, cost_model=cost_model)


def plan_for(
    workload: Workload,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    *,
    forced: Mapping[str, ForcedPlacement] | None = None,
    cost_model: str | CostModel = "program",
) -> Plan:
    """As ``plan``, for all that a workload knows: of the dense layers, too."""
    check_model(tables, features)
    forced, fleet, batch = dict(forced or {}), workload.fleet, workload.batch_size
    _check_request(tables, forced, fleet, batch)
    if problems := workload.statistics.problems(tables, features):
        raise ValueError("; ".join(problems))
    models: dict[str, CostModel] = {
        "program": ProgramModel(workload),
        "embark": EmbarkModel(workload),
    }
    if isinstance(cost_model, str):
        if cost_model not in models:
            known = list(models)
            raise ValueError(f"cost_model is {cost_model!r}, must be one of {known}")
        cost_model = models[cost_model]
    searches: dict[tuple[StorageKind, ...], Search] = {}
    for exchange in _exchanges(fleet, cost_model):
        search = Search(tables, features, forced, workload, cost_model, exchange)
        searches.setdefault(search.empty.storages, search)
    search, placing, lower_bound_ms = _best([*searches.values()])
    placements = search.placements(placing)
    ledger = placing.ledger
    step_ms = ledger.step_ms()
    return Plan(
        features=tuple(features),
        placements=placements,
        nodes=fleet.nodes,
        gpus_per_node=fleet.gpus_per_node,
        batch_size=batch,
        capacities=capacities(placements, features, workload),
        prediction=Prediction(
            cost_model.name,
            step_ms,
            min(step_ms, lower_bound_ms),
            tuple(map(float, ledger.device_ms())),
            (ledger.bytes(),) * fleet.devices,
            break_down(placements, features, workload, cost_model)
            if isinstance(cost_model, ProgramModel)
            else None,
        ),
    )


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
        placings, lower_bound_ms = self._search(np.inf, np.inf)
        fitting = list(filter(self._fits, placings))
        if fitting:
            return min(fitting, key=_step_ms), lower_bound_ms
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

    def improve(self, best_ms: float, enough_ms: float) -> tuple[Placing | None, float]:
        """A plan that is faster than ``best_ms``, if one is found, and the lower bound
        in ms of all that are, which need not be more than ``enough_ms``."""
        placings, lower_bound_ms = self._search(best_ms, enough_ms)
        better = [p for p in placings if self._fits(p) and _step_ms(p) < best_ms]
        return min(better, key=_step_ms, default=None), lower_bound_ms

    def _search(self, best_ms: float, enough_ms: float) -> tuple[list[Placing], float]:
        """Plans, of which some may not fit, and the lower bound in ms, see ``improve``;
        infinite, if nothing fits."""
        # First as if memory were no matter: more of it then changes no plan that fits.
        placings, lower_bound_ms = self._rounds(
            np.inf, MEMORY_PRICES[:1], best_ms, enough_ms
        )
        if not placings or self._fits(min(placings, key=_step_ms)):
            return placings, lower_bound_ms
        relaxed = self.program.relax(self.empty.limit_bytes)
        if relaxed is None:
            return placings, np.inf
        lower_bound_ms = max(lower_bound_ms, relaxed.lower_bound)
        for number, limit_bytes in enumerate(self._limits_bytes()):
            placings += self._rounds(limit_bytes, MEMORY_PRICES, best_ms, enough_ms)[0]
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
        prices: Sequence[float],
        best_ms: float,
        enough_ms: float,
    ) -> tuple[list[Placing], float]:
        """Plans, better and better, and the lower bound in ms; none, if nothing fits or
        is faster than ``best_ms``.

        Args:
          limit_bytes: of memory on a device.
          prices: of memory, see ``_place``.
          best_ms, enough_ms: see ``improve``.
        """
        relaxed = self.program.relax(limit_bytes)
        if relaxed is None:
            return [], np.inf
        if relaxed.lower_bound >= best_ms:
            return [], relaxed.lower_bound
        placings = self._place(relaxed, relaxed.lower_bound, limit_bytes, prices)
        bound_ms = relaxed.lower_bound
        best_ms = min(best_ms, *map(_step_ms, placings))
        rounds = ROUNDS if len(self.program.candidates) <= MAX_WHOLE else 0
        for number in range(rounds):
            if bound_ms >= enough_ms:
                break
            whole = self.program.choose(limit_bytes, relaxed, best_ms)
            if whole is None:
                break
            bound_ms = max(bound_ms, whole.lower_bound)
            placings += self._place(whole, bound_ms, limit_bytes, prices)
            if number == 0:
                crowded = self.program.choose(limit_bytes, relaxed, best_ms, CROWDING)
                if crowded is not None:
                    placings += self._place(crowded, bound_ms, limit_bytes, prices)
            best_ms = min(best_ms, *map(_step_ms, placings))
            if best_ms <= GOOD * bound_ms or not self.program.refine(whole):
                break
        return placings, min(bound_ms, best_ms)

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
        prices: Sequence[float],
    ) -> list[Placing]:
        """Placed and polished, with memory ever dearer until it suffices."""
        chosen: list[Candidate] = [options[0] for options in self.options]
        for members, group, counts in zip(
            self.members.values(), self.groups, choice.counts, strict=True
        ):
            taken = np.repeat(np.arange(len(counts)), _rounded(counts, group.count))
            for i, candidate in zip(members, taken, strict=True):
                chosen[i] = group.candidates[int(candidate)]
        owners = [force.devices for force in self.forced]
        movable = [devices is None for devices in owners]
        placings = []
        for price in prices:
            ms_per_byte = price * lower_bound_ms / self.fair_share_bytes
            placing = Placing(self.empty, ms_per_byte)
            placing.place(chosen, owners)
            polish(placing, self.options, movable)
            placings.append(placing)
            if placing.ledger.bytes() <= limit_bytes:
                break
        return placings

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


def _exchanges(fleet: Fleet, model: CostModel) -> tuple[Exchange, ...]:
    """Those of RB that differ, and have another price."""
    flat = StorageKind("rb", MIN_WIDTH)
    staged = flat._replace(hierarchical=True)
    alike = model.storage_price(flat) == model.storage_price(staged)
    if alike or fleet.nodes == 1 or fleet.gpus_per_node == 1:
        return ("flat",)
    return ("flat", "hierarchical")


def _best(searches: Sequence[Search]) -> tuple[Search, Placing, float]:
    """The search that finds the best plan, that plan, and the lower bound in ms of the
    plans of all searches.

    Raises:
      ValueError: if the tables do not fit.
    """
    if len(searches) == 1:
        return searches[0], *searches[0].run()
    best, best_ms, lower_bound_ms = None, np.inf, np.inf
    # The most promising comes first: later ones need not raise the bound further.
    for search in sorted(searches, key=Search.relaxed_ms):
        placing, bound_ms = search.improve(best_ms, lower_bound_ms)
        lower_bound_ms = min(lower_bound_ms, bound_ms)
        if placing is not None:
            best, best_ms = (search, placing), _step_ms(placing)
    if best is None:
        return _best(searches[:1])
    return *best, lower_bound_ms


def _check_request(
    tables: Sequence[TableSpec],
    forced: Mapping[str, ForcedPlacement],
    fleet: Fleet,
    batch: int,
) -> None:
    unknown = sorted(set(forced) - {table.name for table in tables})
    if unknown:
        raise ValueError(f"placements are forced for unknown tables {unknown}")
    problems = [
        problem
        for table in tables
        if table.name in forced
        for problem in forced_problems(table, forced[table.name], fleet.devices)
    ]
    if batch < 1 or batch % fleet.devices:
        problems.append(
            f"batch size {batch} must be a multiple of the {fleet.devices} devices"
        )
    if problems:
        raise ValueError("; ".join(problems))


def _step_ms(placing: Placing) -> float:
    return placing.ledger.step_ms()


def _rounded(counts: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers that sum to ``total``, the largest remainders rounded up."""
    whole = np.floor(counts + 1e-6).astype(int)
    order = np.argsort(whole - counts, kind="stable")
    whole[order[: total - whole.sum()]] += 1
    return whole
