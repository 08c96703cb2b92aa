"""Makes the plan of a request."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from embark_jax.planner.cost.breakdown import break_down
from embark_jax.planner.cost.model import CostModel
from embark_jax.planner.cost.predict import capacities, predict
from embark_jax.planner.cost.program import ProgramModel
from embark_jax.planner.request.workload import Workload
from embark_jax.planner.search.certify import certify
from embark_jax.planner.search.dynamic import fully_grown, spread, with_tables
from embark_jax.planner.search.instance import forced_problems, make_instance
from embark_jax.planner.search.params import DEFAULT, SearchParams
from embark_jax.planner.search.reasons import reasons
from embark_jax.planner.search.solve import SearchResult, solve
from embark_jax.plans import fleet as fleets
from embark_jax.plans.alike import alike
from embark_jax.plans.counts import MOST_BATCH, whole
from embark_jax.plans.fleet import Fleet
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.options import Kernels
from embark_jax.plans.plan import Plan
from embark_jax.plans.prediction import Removal
from embark_jax.plans.storage import sequence_problems
from embark_jax.plans.tables import FeatureSpec, TableSpec, check_model
from embark_jax.plans.wire import FLOAT32, Wire
from embark_jax.statistics.accesses import NO_STATISTICS, Statistics

MAX_VALUES = 2**56
"""Largest number of values that a step reads: their bytes are a 64-bit integer."""
ROUNDING = 1e-6
"""Change of a step or a bound that is a rounding error, as a share."""


def plan(
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    fleet: Fleet | str,
    batch: int,
    *,
    forced: Mapping[str, ForcedPlacement] | None = None,
    zipf_exponent: float = 0.0,
    capacity_slack: float = 1.25,
    optimizer: str = "rowwise_adagrad",
    cost_model: CostModel | None = None,
    statistics: Statistics = NO_STATISTICS,
    wire: Wire = FLOAT32,
    certify_s: float = 0.0,
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
      cost_model: your own cost model; None prices what the compiled step moves.
      statistics: statistics of a sample of the data; ``zipf_exponent`` is then for the
        tables that are not in it.
      wire: the formats in which rows and gradients travel.
      certify_s: seconds in which a solver raises the bound and improves the plan.
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
        memory_gb=memory_gb,
        kernels=kernels,
    )
    return plan_for(
        workload,
        tables,
        features,
        forced=forced,
        cost_model=cost_model,
        certify_s=certify_s,
    )


def plan_for(
    workload: Workload,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    *,
    forced: Mapping[str, ForcedPlacement] | None = None,
    cost_model: CostModel | None = None,
    certify_s: float = 0.0,
    replan: int = 0,
    params: SearchParams = DEFAULT,
) -> Plan:
    """Plans like ``plan``, with all that a workload knows, such as the dense layers.
    With ``replan`` it plans again without each of so many tables, those that take most
    of the step; ``params`` say how much is tried."""
    check_model(tables, features)
    forced = dict(forced or {})
    grown = fully_grown(tables)
    all_forced = forced | spread(grown, forced, workload.devices)
    model = cost_model or ProgramModel(workload)
    _check_request(grown, features, all_forced, workload, model)
    if problems := workload.statistics.problems(grown, features):
        raise ValueError("; ".join(problems))
    instance = make_instance(grown, features, all_forced, workload, model, params)
    result = solve(instance)
    certified = ""
    if certify_s:
        proven = certify(instance, result, certify_s)
        certified = _difference(result, proven, certify_s)
        result = proven
    planned = _as_plan(result, tables, features, certified)

    def step_ms_without(names: frozenset[str]) -> float:
        statistics = workload.statistics
        gone = {feature.name for feature in features if feature.table in names}
        left = dataclasses.replace(
            statistics,
            features={k: v for k, v in statistics.features.items() if k not in gone},
            tables={k: v for k, v in statistics.tables.items() if k not in names},
        )
        again = plan_for(
            dataclasses.replace(workload, statistics=left),
            [table for table in tables if table.name not in names],
            [feature for feature in features if feature.table not in names],
            forced={name: force for name, force in forced.items() if name not in names},
            cost_model=cost_model,
            params=params,
        )
        assert again.prediction is not None
        return again.prediction.step_ms

    return _replanned(planned, replan, step_ms_without)


def _replanned(
    plan: Plan, number: int, step_ms_without: Callable[[frozenset[str]], float]
) -> Plan:
    """Returns the plan, whose removals say how long the step of a new plan is without
    them, for those tables that take most of the step.

    Args:
      plan: a plan of the planner.
      number: number of tables, or of tables that are alike.
      step_ms_without: plans without these tables.
    """
    prediction = plan.prediction
    if prediction is None or prediction.breakdown is None:
        return plan
    breakdown = prediction.breakdown
    groups = [
        tuple(placement.table.name for placement in group)
        for group in alike(plan.placements, plan.features)
    ]
    groups.sort(key=lambda names: -sum(breakdown.table_ms[name] for name in names))
    largest = {frozenset(names) for names in groups[:number]}

    def planned_again(removal: Removal) -> Removal:
        names = frozenset(removal.tables)
        if names not in largest:
            return removal
        everything = len(names) == len(plan.placements)
        step_ms = 0.0 if everything else step_ms_without(names)
        return dataclasses.replace(removal, replanned_ms=step_ms)

    removals = tuple(map(planned_again, breakdown.removals))
    breakdown = dataclasses.replace(breakdown, removals=removals)
    prediction = dataclasses.replace(prediction, breakdown=breakdown)
    return dataclasses.replace(plan, prediction=prediction)


def _difference(before: SearchResult, after: SearchResult, seconds: float) -> str:
    """Says what the solver changed."""
    figures = (
        ("the step", before.step_ms, after.step_ms),
        ("the bound", before.bound_ms, after.bound_ms),
    )
    changes = [
        f"{what} from {old:.3f} to {new:.3f} ms"
        for what, old, new in figures
        if abs(new - old) > ROUNDING * old
    ]
    changed = " and ".join(changes) or "neither the plan nor the bound"
    return f"certify, {seconds:g} s: changed {changed}"


def _as_plan(
    result: SearchResult,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    certified: str,
) -> Plan:
    assignment = result.assignment
    workload = assignment.instance.workload
    model = assignment.instance.model
    if result.bound_ms > result.step_ms:
        raise RuntimeError(
            f"the bound of {result.bound_ms} ms is above the plan's {result.step_ms} "
            "ms: one of them is wrong; please report this request"
        )
    placements = assignment.placements(reasons(assignment))
    return Plan(
        features=tuple(features),
        placements=with_tables(placements, tables),
        nodes=workload.fleet.nodes,
        gpus_per_node=workload.fleet.gpus_per_node,
        batch_size=workload.batch_size,
        capacities=capacities(placements, features, workload),
        prediction=dataclasses.replace(
            predict(placements, features, workload, model),
            lower_bound_ms=float(result.bound_ms),
            breakdown=break_down(placements, features, workload, model)
            if isinstance(model, ProgramModel)
            else None,
            certified=certified,
            placeholders=workload.fleet.placeholders,
        ),
    )


def _check_request(
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    forced: Mapping[str, ForcedPlacement],
    workload: Workload,
    model: CostModel,
) -> None:
    batch = workload.batch_size
    unknown = sorted(set(forced) - {table.name for table in tables})
    if unknown:
        raise ValueError(f"placements are forced for unknown tables {unknown}")
    for name, force in forced.items():
        if not isinstance(force, ForcedPlacement):
            raise ValueError(
                f"table {name!r}: {force!r} is forced, must be such as "
                "ForcedPlacement(cluster='rb')"
            )
    problems = [
        problem
        for table in tables
        if table.name in forced
        for problem in forced_problems(table, forced[table.name], workload.devices)
    ]
    clusters = {name: force.cluster for name, force in forced.items() if force.cluster}
    if len(model.clusters) == 1:  # which are then in the only one that has a price
        clusters = dict.fromkeys([t.name for t in tables], *model.clusters) | clusters
    problems += sequence_problems(clusters, features)
    if whole("batch size", batch, MOST_BATCH) % workload.devices:
        problems.append(
            f"batch size {batch} must be a multiple of the {workload.devices} devices"
        )
    if problems:
        raise ValueError("; ".join(problems))
    dims = {table.name: table.dim for table in tables}
    values = batch * sum(f.hotness * dims[f.table] for f in features)
    if values > MAX_VALUES:
        raise ValueError(
            f"batch size {batch:,}: a step reads {values:,} values of rows, must be at "
            f"most {MAX_VALUES:,}; lower it, or hotness"
        )
