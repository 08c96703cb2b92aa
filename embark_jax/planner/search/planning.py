"""The door of the planner: plans a request, and says what would help, in numbers of
plans that were made."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from embark_jax._base.memory import bytes_text
from embark_jax.planner.cost.pricing import price
from embark_jax.planner.request.checking import checked
from embark_jax.planner.request.workload import Workload
from embark_jax.planner.search.advice import faster, knee, lighter
from embark_jax.planner.search.instance import Instance
from embark_jax.planner.search.limits import solve_within
from embark_jax.planner.search.solve import DoesNotFitError, SearchResult, solve
from embark_jax.plans import fleet as fleets
from embark_jax.plans.fleet import Fleet
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.options import Kernels
from embark_jax.plans.plan import Plan
from embark_jax.plans.prediction import MemoryUse
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.plans.wire import FLOAT32, Wire
from embark_jax.statistics.accesses import NO_STATISTICS, Statistics

HALVINGS = DOUBLINGS = 4
"""How often the batch is halved, and nodes are doubled, for tables that do not fit."""
ROUNDING = 1e-9
"""Share by which a bound is above a plan that reaches it, by rounding errors."""
Forced = Mapping[str, ForcedPlacement]


def plan(
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    fleet: Fleet | str,
    batch: int,
    *,
    forced: Forced | None = None,
    zipf_exponent: float = 0.0,
    capacity_slack: float = 1.25,
    optimizer: str = "rowwise_adagrad",
    statistics: Statistics = NO_STATISTICS,
    wire: Wire = FLOAT32,
    overlap: bool | None = None,
    memory_gb: float | None = None,
    kernels: Kernels = "xla",
) -> Plan:
    """Places every table on the fleet.

    Args:
      tables, features: the model.
      fleet: the machines; or a fleet's name or YAML file, which stands for one machine.
      batch: global batch size, samples a step.
      forced: forced placements by table name.
      zipf_exponent: skew of ids within their table; 0 is uniform.
      capacity_slack: multiple of the expected ids that exchange buffers hold.
      optimizer: optimizer of the embedding rows; its state takes memory in addition.
      statistics: statistics of a sample of the data; ``zipf_exponent`` is then for the
        tables that are not in it.
      wire: the formats in which rows and gradients travel.
      overlap: whether the routes of the next batch hide beside the dense layers;
        None does so on GPUs.
      memory_gb: most memory of a device that a step may take; None is most of all.
      kernels: implementation of lookups and updates that is priced: plain XLA, or
        "mosaic_gpu", the GPU kernels.

    Raises:
      ValueError: if the model is inconsistent, a forced placement impossible, the
        statistics are of another model, or the tables do not fit the fleet.
    """
    if isinstance(fleet, str):
        fleet = fleets.load(fleet)
    workload = Workload(
        fleet=fleet,
        batch_size=batch,
        zipf_exponent=zipf_exponent,
        capacity_slack=capacity_slack,
        optimizer=optimizer,
        statistics=statistics,
        wire=wire,
        overlap=not fleet.shared if overlap is None else overlap,
        memory_gb=memory_gb,
        kernels=kernels,
    )
    return plan_for(workload, tables, features, forced=forced, advise=True)


def plan_for(
    workload: Workload,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    *,
    forced: Forced | None = None,
    or_tables: Sequence[TableSpec] = (),
    advise: bool = False,
) -> Plan:
    """Places every table of a model, for a step that a workload describes.

    Args:
      workload: circumstances of the step.
      tables, features: the model.
      forced: forced placements by table name.
      or_tables: the same tables, some of tier "auto", which are planned where those
        above do not fit; the advice then says where their rows are.
      advise: whether to try what would make it faster, and less memory, for the advice
        of the prediction.

    Raises:
      ValueError: if the model is inconsistent, a forced placement impossible, the
        statistics are of another model, or the tables do not fit the fleet.
    """
    forced = forced or {}
    advice: list[str] = []
    try:
        results = _results(workload, tables, features, forced)
        made = tables
    except DoesNotFitError as error:
        try:
            if not or_tables:
                raise
            results = _results(workload, or_tables, features, forced)
            made = or_tables
        except DoesNotFitError:
            options = _that_fit(workload, or_tables or tables, features, forced)
            helps = [f"{change} ({_cost(other)})" for change, other in options]
            text = f"; what would help: {', or '.join(helps)}" if helps else ""
            raise ValueError(f"{error}{text}") from None
    best = results[0]
    planned = _plan(best, made, features, workload)
    if made is not tables:
        pairs = zip(planned.tables, tables, strict=True)
        moved = sum(new.tier != old.tier for new, old in pairs)
        advice.append(
            f"memory is short with all rows on devices: {moved} of {len(tables)} "
            "tables are in another tier, as with embedding.tables.NAME.tier=auto"
        )
    by_memory = [(r.assignment.bytes(), r.assignment.step_ms()) for r in results]
    if advise and not workload.fleet.placeholders:
        if light := lighter(best):
            by_memory.append((light.bytes(), light.step_ms()))
        if workload.memory_gb is None and (text := knee(by_memory)):
            advice.append(text)
        placements = best.assignment.placements()
        advice += faster(best.assignment, placements, made, features, workload, forced)
    assert planned.prediction is not None
    prediction = dataclasses.replace(
        planned.prediction,
        advice=tuple(advice),
        by_memory=tuple(MemoryUse(*each) for each in sorted(by_memory, reverse=True)),
    )
    return dataclasses.replace(planned, prediction=prediction)


def _results(
    workload: Workload,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    forced: Forced,
) -> list[SearchResult]:
    """Returns what the search found, the fastest first.

    Raises:
      DoesNotFitError: if the tables do not fit the fleet.
    """
    grown, forced = checked(tables, features, forced, workload)
    return solve_within(grown, features, forced, workload)


def _plan(
    found: SearchResult,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    workload: Workload,
) -> Plan:
    """Returns what the search found as a plan."""
    bound_ms = found.bound_ms
    if bound_ms > (step_ms := found.assignment.step_ms()) * (1 + ROUNDING):
        raise RuntimeError(
            f"the bound of {bound_ms} ms is above the plan's {step_ms} "
            "ms: one of them is wrong; please report this request"
        )
    placements = found.assignment.placements()
    priced = price(placements, features, workload)
    begin = {table.name: table for table in tables if table.is_dynamic}
    return Plan(
        features=tuple(features),
        placements=tuple(
            dataclasses.replace(each, table=begin.get(each.table.name, each.table))
            for each in placements
        ),
        nodes=workload.fleet.nodes,
        gpus_per_node=workload.fleet.gpus_per_node,
        batch_size=workload.batch_size,
        capacities=priced.capacities(),
        prediction=priced.prediction(float(min(bound_ms, step_ms))),
    )


def _cost(found: SearchResult) -> str:
    """Says what a step takes."""
    step_ms, step_bytes = found.assignment.step_ms(), found.assignment.bytes()
    return f"{step_ms:.3f} ms a step, {bytes_text(step_bytes)} a device"


def _that_fit(
    workload: Workload,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    forced: Forced,
) -> Iterator[tuple[str, SearchResult]]:
    """Yields requests that are like one that does not fit, in words, and what a short
    search finds for them: of each kind the first that fits. More nodes help who plans
    for a fleet."""
    fleet, samples = workload.fleet, workload.batch_size
    requests: list[list[tuple[str, Workload, Sequence[TableSpec]]]] = []
    here = [table for table in tables if not (table.cached or table.is_dynamic)]
    if here:
        largest = max(here, key=lambda table: table.rows * table.dim)
        for_all = f"tier: auto, as in embedding.tables.{largest.name}.tier, of all"
        moves = {
            f"embedding.tables.{largest.name}.tier: auto": [largest],
            for_all: here,
        }
        requests.append(
            [
                (
                    change,
                    workload,
                    [
                        dataclasses.replace(table, tier="auto")
                        if table in moved
                        else table
                        for table in tables
                    ],
                )
                for change, moved in moves.items()
            ]
        )
    batches = [samples >> n for n in range(1, HALVINGS + 1)]
    requests.append(
        [
            (f"a batch of {n:,}", dataclasses.replace(workload, batch_size=n), tables)
            for n in batches
            if n and n % fleet.devices == 0
        ]
    )
    larger = [
        dataclasses.replace(fleet, nodes=fleet.nodes << n)
        for n in range(1, DOUBLINGS + 1)
        if not fleet.shared
    ]
    requests.append(
        [
            (f"{other.nodes} nodes", dataclasses.replace(workload, fleet=other), tables)
            for other in larger
            if samples % other.devices == 0
        ]
    )
    for alike in requests:
        for change, load, others in alike:
            with contextlib.suppress(ValueError):
                grown, fixed = checked(others, features, forced, load)
                instance = Instance(grown, features, fixed, load)
                yield change, solve(instance, quick=True)
                break
