"""Makes the plan of a request."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from embark_jax.planner.cost.breakdown import break_down
from embark_jax.planner.cost.embark import EmbarkModel
from embark_jax.planner.cost.model import CostModel, ProgramModel
from embark_jax.planner.cost.predict import capacities, predict
from embark_jax.planner.request.workload import Workload
from embark_jax.planner.search.certify import certify
from embark_jax.planner.search.dynamic import fully_grown, spread, with_tables
from embark_jax.planner.search.instance import forced_problems, make_instance
from embark_jax.planner.search.reasons import reasons
from embark_jax.planner.search.replanning import replanned
from embark_jax.planner.search.slots import choose_slots
from embark_jax.planner.search.solve import Found, solve
from embark_jax.plans import fleet as fleets
from embark_jax.plans.fleet import Fleet
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.plan import Plan
from embark_jax.plans.tables import (
    MOST_BATCH,
    FeatureSpec,
    TableSpec,
    check_model,
    whole,
)
from embark_jax.plans.wire import FLOAT32, Wire
from embark_jax.statistics.accesses import NO_STATISTICS, Statistics

MOST_VALUES = 2**56
"""Largest number of values that a step reads: their bytes are a 64-bit integer."""
SAME = 1e-6
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
    cost_model: str | CostModel = "program",
    statistics: Statistics = NO_STATISTICS,
    wire: Wire = FLOAT32,
    certify_s: float = 0.0,
    memory_gb: float | None = None,
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
      cost_model: "program" prices what the compiled step moves, "embark" is EMBark's
        published formula; or your own cost model.
      statistics: statistics of a sample of the data; ``zipf_exponent`` is then for the
        tables that are not in it.
      wire: the formats in which rows and gradients travel.
      certify_s: seconds in which a solver raises the bound and improves the plan.
      memory_gb: most memory of a device that a step may take; None is most of all.

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
    cost_model: str | CostModel = "program",
    certify_s: float = 0.0,
    replan: int = 0,
) -> Plan:
    """Plans like ``plan``, with all that a workload knows, such as the dense layers.
    With ``replan`` it plans again without each of so many tables, those that take most
    of the step."""
    check_model(tables, features)
    forced, fleet, batch = dict(forced or {}), workload.fleet, workload.batch_size
    given = dict(forced)
    begun, tables = tables, fully_grown(tables)
    forced |= spread(tables, forced, workload.devices)
    _check_request(tables, forced, fleet, batch)
    dims = {table.name: table.dim for table in tables}
    values = batch * sum(f.hotness * dims[f.table] for f in features)
    if values > MOST_VALUES:
        raise ValueError(
            f"batch size {batch:,}: a step reads {values:,} values of rows, must be at "
            f"most {MOST_VALUES:,}; lower it, or hotness"
        )
    tables = choose_slots(
        tables,
        features,
        workload,
        lambda some: plan_for(
            workload, some, features, forced=forced, cost_model=cost_model
        ),
    )
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
    instance = make_instance(tables, features, forced, workload, cost_model)
    found, certified = solve(instance), ""
    if certify_s:
        before, found = found, certify(instance, found, certify_s)
        certified = _difference(before, found, certify_s)
    planned = _as_plan(found, begun, features, certified)

    def statistics_without(names: frozenset[str]) -> Statistics:
        known = workload.statistics
        gone = {feature.name for feature in features if feature.table in names}
        return dataclasses.replace(
            known,
            features={k: v for k, v in known.features.items() if k not in gone},
            tables={k: v for k, v in known.tables.items() if k not in names},
        )

    def step_ms_without(names: frozenset[str]) -> float:
        again = plan_for(
            dataclasses.replace(workload, statistics=statistics_without(names)),
            [table for table in begun if table.name not in names],
            [feature for feature in features if feature.table not in names],
            forced={name: each for name, each in given.items() if name not in names},
            cost_model=cost_model,
        )
        assert again.prediction is not None
        return again.prediction.step_ms

    return replanned(planned, replan, step_ms_without)


def _difference(before: Found, after: Found, seconds: float) -> str:
    """Says what the solver changed."""
    step_ms = before.assignment.step_ms(), after.assignment.step_ms()
    changes = [
        f"{what} from {old:.3f} to {new:.3f} ms"
        for what, old, new in (
            ("the step", *step_ms),
            ("the bound", before.bound_ms, after.bound_ms),
        )
        if abs(new - old) > SAME * old
    ]
    changed = " and ".join(changes)
    return f"certify, {seconds:g} s: " + (
        f"changed {changed}" if changes else "changed neither the plan nor the bound"
    )


def _as_plan(
    found: Found,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    certified: str,
) -> Plan:
    assignment, instance = found.assignment, found.assignment.instance
    workload, model = instance.workload, instance.model
    step_ms = assignment.step_ms()
    if found.bound_ms > step_ms:
        raise RuntimeError(
            f"the bound of {found.bound_ms} ms is above the plan's {step_ms} ms: "
            "one of them is wrong; please report this request"
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
            lower_bound_ms=float(found.bound_ms),
            breakdown=break_down(placements, features, workload, model)
            if isinstance(model, ProgramModel)
            else None,
            certified=certified,
            placeholders=workload.fleet.placeholders,
        ),
    )


def _check_request(
    tables: Sequence[TableSpec],
    forced: Mapping[str, ForcedPlacement],
    fleet: Fleet,
    batch: int,
) -> None:
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
        for problem in forced_problems(table, forced[table.name], fleet.devices)
    ]
    if whole("batch size", batch, MOST_BATCH) % fleet.devices:
        problems.append(
            f"batch size {batch} must be a multiple of the {fleet.devices} devices"
        )
    if problems:
        raise ValueError("; ".join(problems))
