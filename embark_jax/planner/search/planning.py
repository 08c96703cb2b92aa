"""Plans a request once; ``advised`` tries what would help, too."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from embark_jax._base.config import nearest
from embark_jax.planner.cost.pricing import price
from embark_jax.planner.request.workload import Workload
from embark_jax.planner.search.dynamic import fully_grown, spread, with_tables
from embark_jax.planner.search.instance import Instance, make_instance
from embark_jax.planner.search.params import DEFAULT, SearchParams
from embark_jax.planner.search.reasons import reasons
from embark_jax.planner.search.solve import SearchResult, solve
from embark_jax.plans.clusters import CLUSTERS, DIRECT, REPLICATED, SHARDED
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.options import Cluster
from embark_jax.plans.plan import Plan
from embark_jax.plans.storage import Placement, sequence_problems
from embark_jax.plans.tables import (
    MOST_BATCH,
    FeatureSpec,
    TableSpec,
    check_model,
    whole,
)

MAX_VALUES = 2**56
"""Largest number of values that a step reads: their bytes are a 64-bit integer."""


def plan_for(
    workload: Workload,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    *,
    forced: Mapping[str, ForcedPlacement] | None = None,
    params: SearchParams = DEFAULT,
) -> Plan:
    """Places every table of a model, for a step that a workload describes.

    Args:
      workload: circumstances of the step.
      tables, features: the model.
      forced: forced placements by table name.
      params: how much is tried.

    Raises:
      DoesNotFitError: if the tables do not fit the fleet.
      ValueError: if the model is inconsistent, a forced placement impossible, or the
        statistics are of another model.
    """
    instance = _instance(workload, tables, features, forced, params)
    return _as_plan(solve(instance), tables, features)


def _instance(
    workload: Workload,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    forced: Mapping[str, ForcedPlacement] | None,
    params: SearchParams,
) -> Instance:
    """Returns the instance of a request, which is checked."""
    check_model(tables, features)
    forced = dict(forced or {})
    grown = fully_grown(tables)
    all_forced = forced | spread(grown, forced, workload.devices)
    _check_request(grown, features, all_forced, workload)
    if problems := workload.statistics.problems(grown, features):
        raise ValueError("; ".join(problems))
    return make_instance(grown, features, all_forced, workload, params)


def _as_plan(
    result: SearchResult,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
) -> Plan:
    assignment = result.assignment
    workload = assignment.instance.workload
    if result.bound_ms > result.step_ms:
        raise RuntimeError(
            f"the bound of {result.bound_ms} ms is above the plan's {result.step_ms} "
            "ms: one of them is wrong; please report this request"
        )
    placements = assignment.placements(reasons(assignment))
    priced = price(placements, features, workload)
    return Plan(
        features=tuple(features),
        placements=with_tables(placements, tables),
        nodes=workload.fleet.nodes,
        gpus_per_node=workload.fleet.gpus_per_node,
        batch_size=workload.batch_size,
        capacities=priced.capacities(),
        prediction=priced.prediction(float(result.bound_ms)),
    )


def _check_request(
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    forced: Mapping[str, ForcedPlacement],
    workload: Workload,
) -> None:
    batch = workload.batch_size
    unknown = sorted(set(forced) - {table.name for table in tables})
    if unknown:
        hint = nearest(unknown[0], [table.name for table in tables])
        raise ValueError(f"placements are forced for unknown tables {unknown}; {hint}")
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
        for problem in _forced_problems(table, forced[table.name], workload.devices)
    ]
    clusters = {name: force.cluster for name, force in forced.items() if force.cluster}
    problems += sequence_problems(clusters, features)
    if whole("batch size", batch, MOST_BATCH) % workload.devices:
        problems.append(
            f"batch size {batch} must be a multiple of the {workload.devices} devices, "
            f"such as {-(-batch // workload.devices) * workload.devices}"
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


def _forced_problems(
    table: TableSpec, force: ForcedPlacement, devices: int
) -> list[str]:
    """Lists what is impossible about a forced placement."""
    columns = 1 if force.column_shards is None else force.column_shards
    rows = force.row_shards
    owners = force.devices
    exchange = force.exchange or DIRECT
    able: list[Cluster] = [
        name for name in SHARDED if exchange in CLUSTERS[name].exchanges
    ]
    cluster = force.cluster or (able or list(SHARDED))[0]
    if rows is None:
        rows = max(1, len(owners or ()) // max(1, columns))
    if owners is None:
        owners = () if cluster == REPLICATED else (0,) * (rows * columns)
    if table.tier == "auto":
        table = dataclasses.replace(table, tier="device", slots=None)
    placement = Placement(
        table=table,
        cluster=cluster,
        row_shards=rows,
        column_shards=columns,
        devices=owners,
        exchange=exchange,
        hot_rows=force.hot_rows or 0,
    )
    return placement.problems(devices)
