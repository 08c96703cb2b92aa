"""Makes a plan.

On several nodes plans are searched for with a flat and with a hierarchical exchange of
RB, and not with both in one plan: the bound is loose where tables may mix them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from embark_jax import fleet as fleets
from embark_jax.fleet import Fleet
from embark_jax.planner.access import NO_STATISTICS, Statistics
from embark_jax.planner.breakdown import break_down
from embark_jax.planner.candidates import MIN_WIDTH, ForcedPlacement, forced_problems
from embark_jax.planner.capacities import capacities
from embark_jax.planner.cost import CostModel, EmbarkModel, ProgramModel
from embark_jax.planner.explore import best_plan
from embark_jax.planner.plan import Plan
from embark_jax.planner.prediction import Prediction
from embark_jax.planner.search import Search
from embark_jax.planner.storage import Exchange, StorageKind
from embark_jax.planner.wire import FLOAT32, Wire
from embark_jax.planner.workload import Workload
from embark_jax.tables import FeatureSpec, TableSpec, check_model, whole


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
) -> Plan:
    """Places every table on the fleet.

    Args:
      tables, features: the model.
      fleet: the machines, or a fleet's name or YAML file: one machine of it.
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
    if isinstance(fleet, str):
        fleet = fleets.load(fleet)
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
    search, placing, lower_bound_ms = best_plan([*searches.values()])
    placements = search.placements(placing)
    ledger = placing.ledger
    planned_ms = ledger.step_ms()
    return Plan(
        features=tuple(features),
        placements=placements,
        nodes=fleet.nodes,
        gpus_per_node=fleet.gpus_per_node,
        batch_size=batch,
        capacities=capacities(placements, features, workload),
        prediction=Prediction(
            cost_model.name,
            planned_ms,
            min(planned_ms, lower_bound_ms),
            tuple(map(float, ledger.device_ms())),
            (ledger.bytes(),) * fleet.devices,
            break_down(placements, features, workload, cost_model)
            if isinstance(cost_model, ProgramModel)
            else None,
        ),
    )


def _exchanges(fleet: Fleet, model: CostModel) -> tuple[Exchange, ...]:
    """Those of RB that differ, and have another price."""
    flat = StorageKind("rb", MIN_WIDTH)
    staged = flat._replace(hierarchical=True)
    alike = model.storage_price(flat) == model.storage_price(staged)
    if alike or fleet.nodes == 1 or fleet.gpus_per_node == 1:
        return ("flat",)
    return ("flat", "hierarchical")


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
    if whole("batch size", batch) % fleet.devices:
        problems.append(
            f"batch size {batch} must be a multiple of the {fleet.devices} devices"
        )
    if problems:
        raise ValueError("; ".join(problems))
