"""Plans a request, and tries what would make the step shorter or the tables fit.

Every advice was planned or priced before it is given, and says the step and the memory
that come of it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from embark_jax.planner.cost.pricing import price
from embark_jax.planner.cost.rates import Rates
from embark_jax.planner.request.workload import Workload, looks_ahead
from embark_jax.planner.search.planning import bound_ms, plan_for
from embark_jax.planner.search.solve import DoesNotFitError
from embark_jax.plans import fleet as fleets
from embark_jax.plans.fleet import Fleet
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.options import Kernels
from embark_jax.plans.plan import Plan
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.plans.wire import FLOAT32, Wire
from embark_jax.statistics.accesses import NO_STATISTICS, Statistics

WORTHWHILE = 0.05
"""Smallest share of the step that a format on the wire must save to be advised."""
FASTER = 0.01
"""Smallest share of the step that fewer nodes must save."""
MOST_NAMED = 3
"""Largest number of tables that are named."""
MOST_NODES = 4096
"""Largest number of nodes that is tried for tables that do not fit."""
HALVINGS = 4
"""Largest number of times that the batch is halved for tables that do not fit."""


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
        overlap=looks_ahead(overlap, fleet),
        memory_gb=memory_gb,
        kernels=kernels,
    )
    return advised_plan(workload, tables, features, forced=forced)


def advised_plan(
    workload: Workload,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    *,
    forced: Mapping[str, ForcedPlacement] | None = None,
    or_tables: Sequence[TableSpec] = (),
) -> Plan:
    """Returns the plan of ``plan_for``, with advice in its prediction, if any is known.

    Args:
      workload, tables, features, forced: as in ``plan_for``.
      or_tables: the same tables, some of tier "auto", which are planned where those
        above do not fit; the advice then says where their rows are.

    Raises:
      ValueError: as ``plan_for``; of tables that do not fit it says what would.
    """
    request = _Request(workload, tables, features, dict(forced or {}))
    said: tuple[str, ...] = ()
    try:
        made = request.plan()
    except DoesNotFitError as error:
        request = dataclasses.replace(request, tables=or_tables or tables)
        made = request.if_possible() if or_tables else None
        if made is None:
            helps = [f"{what} ({_cost(other)})" for what, other in _that_fit(request)]
            text = f"; what would help: {', or '.join(helps)}" if helps else ""
            raise ValueError(f"{error}{text}") from None
        said = (_chosen_tiers(made, tables),)
    assert made.prediction is not None
    advice = () if workload.fleet.placeholders else tuple(_faster(request, made))
    return dataclasses.replace(
        made, prediction=dataclasses.replace(made.prediction, advice=said + advice)
    )


def _chosen_tiers(made: Plan, tables: Sequence[TableSpec]) -> str:
    """Says which tables lie elsewhere than they were asked for."""
    asked = {table.name: table.tier for table in tables}
    moved = [table for table in made.tables if table.tier != asked[table.name]]
    named = ", ".join(table.name for table in moved[:MOST_NAMED])
    more = f" and {len(moved) - MOST_NAMED} more" * (len(moved) > MOST_NAMED)
    tiers = " or ".join(sorted({table.tier for table in moved}))
    return (
        f"memory is short with all rows on devices: the planner keeps those of {named}"
        f"{more} in tier {tiers}, as with embedding.tables.NAME.tier=auto"
    )


@dataclasses.dataclass(frozen=True)
class _Request:
    """The arguments of ``plan_for``."""

    workload: Workload
    tables: Sequence[TableSpec]
    features: Sequence[FeatureSpec]
    forced: Mapping[str, ForcedPlacement]

    def plan(self) -> Plan:
        return plan_for(self.workload, self.tables, self.features, forced=self.forced)

    def of(self, **changes: object) -> _Request:
        """Returns the request with another workload."""
        return dataclasses.replace(
            self, workload=dataclasses.replace(self.workload, **changes)
        )

    def on_nodes(self, nodes: int) -> _Request:
        return self.of(fleet=dataclasses.replace(self.workload.fleet, nodes=nodes))

    def bound_ms(self) -> float | None:
        """Returns a time that no plan is below; None if there is no plan."""
        try:
            return bound_ms(
                self.workload, self.tables, self.features, forced=self.forced
            )
        except ValueError:
            return None

    def if_possible(self) -> Plan | None:
        """Returns the plan; None if there is none."""
        try:
            return self.plan()
        except ValueError:
            return None


def _cost(made: Plan) -> str:
    """Says what a step takes."""
    assert made.prediction is not None
    step_ms, most_bytes = made.prediction.step_ms, max(made.prediction.device_bytes)
    return f"{step_ms:.3f} ms a step, {most_bytes / 1e9:.2f} GB a device"


def _faster(request: _Request, made: Plan) -> Iterator[str]:
    """Yields what would make the step shorter."""
    assert made.prediction is not None
    step_ms = made.prediction.step_ms
    if narrow := _in_16_bits(request, made):
        assert narrow.prediction is not None
        yield (
            "rows and gradients that travel in bfloat16 (embedding.wire.rows, "
            "embedding.wire.gradients) make the step of these "
            f"placements {step_ms - narrow.prediction.step_ms:.3f} ms shorter: "
            f"{_cost(narrow)}"
        )
    if fewer := _on_fewer_nodes(request, (1 - FASTER) * step_ms):
        assert fewer.prediction is not None
        text = (
            f"{_nodes(fewer.nodes)} would be {step_ms - fewer.prediction.step_ms:.3f} "
            f"ms faster: {_cost(fewer)}"
        )
        workload, fleet = request.workload, request.workload.fleet
        if workload.dense.parameters:
            here_ms, there_ms = (
                Rates(each).dense_ms(
                    workload.dense, workload.batch_size // each.devices
                )
                for each in (fleet, dataclasses.replace(fleet, nodes=fewer.nodes))
            )
            text += (
                "; the products of the dense layers, which are not in it, take "
                f"{there_ms:.3f} ms there and {here_ms:.3f} ms here"
            )
        yield text


def _in_16_bits(request: _Request, made: Plan) -> Plan | None:
    """Returns the same placements with bfloat16 on the wire, if that is worthwhile. It
    is not priced for dynamic tables, whose placements say how they begin."""
    workload, prediction = request.workload, made.prediction
    wire = dataclasses.replace(workload.wire, rows="bfloat16", gradients="bfloat16")
    dynamic = any(table.is_dynamic for table in request.tables)
    if wire == workload.wire or workload.devices == 1 or dynamic:
        return None
    narrow = dataclasses.replace(workload, wire=wire)
    priced = price(made.placements, request.features, narrow)
    assert prediction is not None
    if priced.step_ms > (1 - WORTHWHILE) * prediction.step_ms:
        return None
    return dataclasses.replace(made, prediction=priced.prediction())


def _on_fewer_nodes(request: _Request, step_ms: float) -> Plan | None:
    """Returns the fastest plan for a half of the nodes, a quarter, …, one; None if none
    is faster than ``step_ms``."""
    nodes, best = request.workload.fleet.nodes, None
    while nodes > 1:
        nodes //= 2
        fewer = request.on_nodes(nodes)
        bound_ms = fewer.bound_ms()
        if bound_ms is None or bound_ms >= step_ms:
            continue
        made = fewer.if_possible()
        if made and made.prediction and made.prediction.step_ms < step_ms:
            step_ms, best = made.prediction.step_ms, made
    return best


def _that_fit(request: _Request) -> Iterator[tuple[str, Plan]]:
    """Yields requests that are like one that does not fit, in words, and their
    plans."""
    workload, fleet = request.workload, request.workload.fleet
    has_target = workload.memory_gb is not None
    if has_target and (made := request.of(memory_gb=None).if_possible()):
        yield "no memory_gb", made
        return
    if request.forced and (
        made := dataclasses.replace(request, forced={}).if_possible()
    ):
        yield "no forced placements", made
    on_device = [table for table in request.tables if table.tier == "device"]
    on_device = [table for table in on_device if not table.is_dynamic]
    if on_device and fleet.device.host_bytes_per_s is not None:
        largest = max(on_device, key=lambda table: table.rows * table.dim)
        tables = [
            dataclasses.replace(table, tier="auto") if table is largest else table
            for table in request.tables
        ]
        if made := dataclasses.replace(request, tables=tables).if_possible():
            key = f"embedding.tables.{largest.name}.tier: auto"
            yield f"host memory for the largest table, in a config {key}", made
    samples = workload.batch_size
    for _ in range(HALVINGS):
        samples = samples // 2 // fleet.devices * fleet.devices
        if not samples:
            break
        if made := request.of(batch_size=samples).if_possible():
            yield f"a batch of {samples:,}", made
            break
    for nodes in _more_nodes(workload):
        if made := request.on_nodes(nodes).if_possible():
            yield _nodes(nodes), made
            return


def _more_nodes(workload: Workload) -> Iterator[int]:
    """Yields larger numbers of nodes that the batch can be shared by: the next ones,
    then each at least one and a half times the one before."""
    nodes = workload.fleet.nodes
    per_node = workload.fleet.gpus_per_node
    tried = nodes
    while nodes < MOST_NODES and nodes * per_node < workload.batch_size:
        nodes += 1
        near = nodes <= 2 * workload.fleet.nodes
        if workload.batch_size % (nodes * per_node) == 0 and (
            near or nodes >= math.ceil(1.5 * tried)
        ):
            tried = nodes
            yield nodes


def _nodes(number: int) -> str:
    return f"{number} node{'s' * (number > 1)}"
