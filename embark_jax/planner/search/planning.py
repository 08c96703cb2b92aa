"""Makes the plan of a request."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from embark_jax.planner.cost.breakdown import break_down
from embark_jax.planner.cost.model import CostModel
from embark_jax.planner.cost.predict import capacities, predict
from embark_jax.planner.cost.program import ProgramModel
from embark_jax.planner.request.workload import Workload
from embark_jax.planner.search.dynamic import fully_grown, spread, with_tables
from embark_jax.planner.search.instance import forced_problems, make_instance
from embark_jax.planner.search.params import DEFAULT, SearchParams
from embark_jax.planner.search.reasons import reasons
from embark_jax.planner.search.solve import SearchResult, solve
from embark_jax.plans import fleet as fleets
from embark_jax.plans.counts import MOST_BATCH, whole
from embark_jax.plans.fleet import Fleet
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.options import Kernels
from embark_jax.plans.plan import Plan
from embark_jax.plans.storage import sequence_problems
from embark_jax.plans.tables import FeatureSpec, TableSpec, check_model
from embark_jax.plans.wire import FLOAT32, Wire
from embark_jax.statistics.accesses import NO_STATISTICS, Statistics

MAX_VALUES = 2**56
"""Largest number of values that a step reads: their bytes are a 64-bit integer."""


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
    )


def plan_for(
    workload: Workload,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    *,
    forced: Mapping[str, ForcedPlacement] | None = None,
    cost_model: CostModel | None = None,
    params: SearchParams = DEFAULT,
) -> Plan:
    """Plans like ``plan``, with all that a workload knows, such as the dense layers.
    ``params`` say how much is tried."""
    check_model(tables, features)
    forced = dict(forced or {})
    grown = fully_grown(tables)
    all_forced = forced | spread(grown, forced, workload.devices)
    model = cost_model or ProgramModel(workload)
    _check_request(grown, features, all_forced, workload, model)
    if problems := workload.statistics.problems(grown, features):
        raise ValueError("; ".join(problems))
    instance = make_instance(grown, features, all_forced, workload, model, params)
    return _as_plan(solve(instance), tables, features)


def _as_plan(
    result: SearchResult,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
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
