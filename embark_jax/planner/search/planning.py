"""The door of the planner: plans a request, and says what would help, in numbers of
plans that were made."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from embark_jax.planner.cost.pricing import price
from embark_jax.planner.request.checking import checked
from embark_jax.planner.request.workload import Workload
from embark_jax.planner.search.instance import Instance
from embark_jax.planner.search.solve import (
    DoesNotFitError,
    SearchResult,
    lighter,
    solve,
)
from embark_jax.plans import fleet as fleets
from embark_jax.plans.fleet import Fleet
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.options import Kernels
from embark_jax.plans.plan import Plan
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.plans.wire import FLOAT32, Wire
from embark_jax.statistics.accesses import NO_STATISTICS, Statistics

HALVINGS = DOUBLINGS = 4
"""How often the batch is halved, and nodes are doubled, for tables that do not fit."""
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
      advise: whether to try a plan of less memory, for the advice of the prediction,
        and what would help tables that do not fit, for the message.

    Raises:
      ValueError: if the model is inconsistent, a forced placement impossible, the
        statistics are of another model, or the tables do not fit the fleet.
    """
    advice: list[str] = []
    try:
        made, found = _searched(workload, tables, features, forced)
    except DoesNotFitError as error:
        try:
            if not or_tables:
                raise
            made, found = _searched(workload, or_tables, features, forced)
        except DoesNotFitError:
            if not advise:
                raise
            options = _that_fit(workload, or_tables or tables, features, forced)
            helps = [f"{change} ({_cost(other)})" for change, other in options]
            text = f"; what would help: {', or '.join(helps)}" if helps else ""
            raise ValueError(f"{error}{text}") from None
        pairs = zip(made.tables, tables, strict=True)
        moved = sum(new.tier != old.tier for new, old in pairs)
        advice.append(
            f"memory is short with all rows on devices: {moved} of {len(tables)} "
            "tables are in another tier, as with embedding.tables.NAME.tier=auto"
        )
    limited = workload.memory_gb is not None or workload.fleet.placeholders
    less = lighter(found) if advise and not limited else None
    if less is not None:
        best, gb = found.assignment, less.bytes() / 1e9
        longer = max(0.0, less.step_ms() / best.step_ms() - 1)
        saved = 1 - less.bytes() / best.bytes()
        advice.append(
            f"a step {longer:.1%} longer would save {saved:.0%} of the memory: "
            f"{gb:.1f} GB a device (embedding.memory_gb={math.ceil(10 * gb) / 10})"
        )
    assert made.prediction is not None
    prediction = dataclasses.replace(made.prediction, advice=tuple(advice))
    return dataclasses.replace(made, prediction=prediction)


def _searched(
    workload: Workload,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    forced: Forced | None,
) -> tuple[Plan, SearchResult]:
    """Returns a plan, and what the search found.

    Raises:
      DoesNotFitError: if the tables do not fit the fleet.
    """
    grown, forced = checked(tables, features, forced or {}, workload)
    found = solve(Instance(grown, features, forced, workload))
    bound_ms = found.bound_ms
    if bound_ms > (step_ms := found.assignment.step_ms()):
        raise RuntimeError(
            f"the bound of {bound_ms} ms is above the plan's {step_ms} "
            "ms: one of them is wrong; please report this request"
        )
    placements = found.assignment.placements()
    priced = price(placements, features, workload)
    begin = {table.name: table for table in tables if table.is_dynamic}
    plan = Plan(
        features=tuple(features),
        placements=tuple(
            dataclasses.replace(each, table=begin.get(each.table.name, each.table))
            for each in placements
        ),
        nodes=workload.fleet.nodes,
        gpus_per_node=workload.fleet.gpus_per_node,
        batch_size=workload.batch_size,
        capacities=priced.capacities(),
        prediction=priced.prediction(float(bound_ms)),
    )
    return plan, found


def _cost(made: Plan) -> str:
    """Says what a step takes."""
    assert made.prediction is not None
    step_ms, most_bytes = made.prediction.step_ms, max(made.prediction.device_bytes)
    return f"{step_ms:.3f} ms a step, {most_bytes / 1e9:.2f} GB a device"


def _that_fit(
    workload: Workload,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    forced: Forced | None,
) -> Iterator[tuple[str, Plan]]:
    """Yields requests that are like one that does not fit, in words, and their plans:
    of each kind the first that fits."""
    fleet, samples = workload.fleet, workload.batch_size
    requests: list[list[tuple[str, Workload, Sequence[TableSpec]]]] = []
    here = [table for table in tables if not (table.cached or table.is_dynamic)]
    if here and fleet.device.host_bytes_per_s is not None:
        largest = max(here, key=lambda table: table.rows * table.dim)
        moved = [
            dataclasses.replace(table, tier="auto") if table is largest else table
            for table in tables
        ]
        change = f"embedding.tables.{largest.name}.tier: auto"
        requests.append([(change, workload, moved)])
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
                yield change, plan_for(load, others, features, forced=forced)
                break
