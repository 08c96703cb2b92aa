"""The door of the planner: plans a request, and says what would help, in numbers of
plans that were made."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

from embark_jax.planner.cost.memory import Memory
from embark_jax.planner.cost.pricing import price
from embark_jax.planner.request.workload import Workload
from embark_jax.planner.search.advice import faster, knee, lighter, what_helps
from embark_jax.planner.search.instance import Forced, Request
from embark_jax.planner.search.params import MEMORY_SHARES, SEARCHED_TABLES
from embark_jax.planner.search.solve import DoesNotFitError, SearchResult, solve
from embark_jax.plans import fleet as fleets
from embark_jax.plans.fleet import Fleet
from embark_jax.plans.options import Kernels
from embark_jax.plans.plan import Plan
from embark_jax.plans.prediction import MemoryUse
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.plans.wire import FLOAT32, Wire
from embark_jax.statistics.accesses import NO_STATISTICS, Statistics

ROUNDING = 1e-9
"""Share by which a bound is above a plan that reaches it, by rounding errors."""


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
    asked = Request(tables, features, forced or {}, workload)
    advice: list[str] = []
    try:
        results = _solve_within(asked)
    except DoesNotFitError as error:
        wherever = asked._replace(tables=or_tables or tables)
        try:
            if not or_tables:
                raise
            results = _solve_within(wherever)
        except DoesNotFitError:
            raise ValueError(f"{error}{what_helps(wherever)}") from None
        pairs = zip(results[0].assignment.tables(), tables, strict=True)
        moved = sum(new.tier != old.tier for new, old in pairs)
        advice.append(
            f"memory is short with all rows on devices: {moved} of {len(tables)} "
            "tables are in another tier, as with embedding.tables.NAME.tier=auto"
        )
        asked = wherever
    best = results[0].assignment
    by_memory = [(each.assignment.bytes(), each.step_ms) for each in results]
    if advise and not workload.fleet.placeholders:
        if light := lighter(results[0]):
            by_memory.append((light.bytes(), light.step_ms()))
        if workload.memory_gb is None:
            advice.append(knee(by_memory))
        advice.append(faster(best, best.placements(), asked))
    return _plan(results[0], asked, [*filter(None, advice)], by_memory)


def _solve_within(asked: Request) -> list[SearchResult]:
    """Returns the plans within the limit of a request that are faster than every one
    of less memory, the fastest first.

    A search with less memory may chance on a faster plan. So whatever limit is asked
    for, the device's whole memory is searched, certain shares of it below, and the
    limit, so that more memory never makes a plan slower. A share is left out if the
    plan of the whole memory fits into it; models of many tables are searched once.

    Raises:
      ValueError: if the request is inconsistent.
      DoesNotFitError: if the tables do not fit.
    """

    def found(limit_bytes: float | None) -> SearchResult:
        memory_gb = limit_bytes and limit_bytes / 1e9
        return solve(asked.under("", memory_gb=memory_gb).instance())

    limit_bytes = Memory(asked.workload).limit_bytes
    if asked.workload.fleet.placeholders:  # the memory of their devices says nothing
        return [found(limit_bytes)]
    device_bytes = Memory(asked.under("", memory_gb=None).workload).limit_bytes
    if limit_bytes < device_bytes:  # says at once how far it is short of this limit
        solve(asked.instance(), quick=True)
    whole = found(None)
    results = [whole]
    if whole.assignment.bytes() > limit_bytes:
        results = [found(limit_bytes)]
    bound_ms = max(result.bound_ms for result in (whole, *results))
    few = len(asked.tables) <= SEARCHED_TABLES
    for share in MEMORY_SHARES if few else ():
        share_bytes = share * device_bytes
        if share_bytes < min(limit_bytes, whole.assignment.bytes()):
            with contextlib.suppress(DoesNotFitError):
                results.append(found(share_bytes))
    results.sort(key=lambda result: result.step_ms)
    return [
        result._replace(bound_ms=bound_ms)
        for i, result in enumerate(results)
        if all(r.assignment.bytes() > result.assignment.bytes() for r in results[:i])
    ]


def _plan(
    found: SearchResult,
    asked: Request,
    advice: Sequence[str],
    by_memory: Sequence[tuple[float, float]],
) -> Plan:
    """Returns what the search found as a plan, with what is said beside it."""
    workload, bound_ms, step_ms = asked.workload, found.bound_ms, found.step_ms
    if bound_ms > step_ms * (1 + ROUNDING):
        raise RuntimeError(
            f"the bound of {bound_ms} ms is above the plan's {step_ms} "
            "ms: one of them is wrong; please report this request"
        )
    placements = found.assignment.placements()
    priced = price(placements, asked.features, workload)
    prediction = dataclasses.replace(
        priced.prediction(float(min(bound_ms, step_ms))),
        advice=tuple(advice),
        by_memory=tuple(MemoryUse(*each) for each in sorted(by_memory, reverse=True)),
    )
    begin = {table.name: table for table in asked.tables if table.is_dynamic}
    return Plan(
        features=tuple(asked.features),
        placements=tuple(
            dataclasses.replace(each, table=begin.get(each.table.name, each.table))
            for each in placements
        ),
        nodes=workload.fleet.nodes,
        gpus_per_node=workload.fleet.gpus_per_node,
        batch_size=workload.batch_size,
        capacities=priced.capacities(),
        prediction=prediction,
    )
