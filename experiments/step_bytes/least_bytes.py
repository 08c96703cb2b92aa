"""Counts the least that a train step must move in a device's memory, term by term.

The step reads and writes once what it cannot do without, in float32 but for rows, which
are in their table's type, and for what goes into and comes out of dense layers, which
is in the type that they compute in:

- the batch is read, and its ids are sorted once, with 32 bits of key and of position;
- each id's row is gathered, and its bag's gradient in the backward pass; in UB, owners
  read each row once more for each device that needs it;
- pooled rows are written; touched rows and their states are read and written;
- what travels is written, sent, received and read, as the plan says;
- a matrix product reads its operands and writes its result, once forward and twice
  backward (once in the first layers, whose inputs need no gradient); cross layers read
  their inputs once more each way, which their products alone do not;
- an optimizer reads parameters, gradients and states, and writes all but the gradients.

The number of touched rows is expected from the ids' skew, as a mean over the devices.
"""

from __future__ import annotations

from collections import defaultdict

from embark_jax.planner import ProgramModel, Workload, phases
from embark_jax.planner.cost.shapes import shapes_of
from embark_jax.planner.request.dense import DenseNetwork
from embark_jax.plans import traffic
from embark_jax.plans.plan import Plan
from embark_jax.plans.storage import row_ranges

SORT_KEY_BYTES = 4
EXCHANGED_IN = {
    "id exchange": "route",
    "row exchange": "lookup",
    "gradient exchange": "row_gradients",
    "square exchange": "row_gradients",
}
"""The phase of the program to which each exchange of the cost model belongs."""

Terms = dict[tuple[str, str], float]
"""Bytes, by the phase of the program and by what it moves."""


def least_bytes(
    plan: Plan,
    workload: Workload,
    network: DenseNetwork,
    dense_features: int,
    compute_bytes: int,
) -> Terms:
    """The terms of a step.

    Args:
      plan: the plan of the tables.
      workload: the workload that the plan was made for.
      network: the dense layers.
      dense_features: number of dense features, which the layers take per sample.
      compute_bytes: bytes of a value that the layers compute with.
    """
    terms: Terms = defaultdict(float)
    batch, value = workload.device_batch, traffic.VALUE_BYTES
    ids = sum(feature.hotness for feature in plan.features)
    terms["route", "batch"] = batch * value * (ids + dense_features + 1)
    per_parameter, per_row = workload.state_values
    ranges = row_ranges(plan.placements)
    of_ranges = shapes_of(ranges, plan.features, workload)
    for rows, shapes in zip(ranges, of_ranges, strict=True):
        (dim,), (hotness,), (filled,) = shapes.dim, shapes.hotness, shapes.filled
        found = batch * hotness * filled
        (row_value,) = shapes.value_bytes
        row_bytes, sum_bytes = row_value * dim, value * dim
        terms["route", "sort"] += _sort_bytes(found)
        terms["lookup", "rows"] += found * row_bytes
        if rows.cluster == "ub":
            sent = shapes.expected_unique(batch).sum()
            terms["lookup", "rows of owners"] += sent * row_bytes
        terms["lookup", "pooled rows"] += batch * shapes.bags.sum() * sum_bytes
        terms["row_gradients", "bag gradients"] += found * sum_bytes
        states = dim * per_parameter + per_row * rows.column_shards
        touched = shapes.expected_unique(workload.batch_size).sum()
        if rows.cluster != "dp":
            touched /= workload.devices
        terms["update", "rows and states"] += 2 * touched * (row_bytes + value * states)
    model = ProgramModel(workload)
    placed = plan.placements, plan.features, workload, model, plan.capacities
    for part in phases(*placed):
        if part.collective is not None:
            moved = traffic.buffer_memory_bytes(part.buffer_bytes)
            terms[EXCHANGED_IN[part.name], part.name] += moved
    _add_dense(terms, network, batch, compute_bytes)
    updated = 3 + 2 * workload.dense.states
    terms["dense_update", "parameters"] = value * updated * network.parameters
    return dict(terms)


def _add_dense(
    terms: Terms, network: DenseNetwork, batch: int, value_bytes: int
) -> None:
    for products in (network.bottom, network.cross, network.top):
        for i, (inputs, outputs) in enumerate(products):
            moved = batch * (inputs + outputs) + inputs * outputs
            times = 2 if products is network.bottom and i == 0 else 3
            terms["dense", "products"] += value_bytes * times * moved
    # Forward reads x0 and x. Backward reads the gradient, x0 and the product, and
    # writes the gradient of the product and, added up, that of x0.
    crossed = batch * network.width * network.cross_layers
    terms["dense", "cross layers"] = value_bytes * (2 + 5) * crossed


def _sort_bytes(ids: float) -> float:
    """Bytes of sorting keys with their positions: each digit reads and writes both, and
    one more pass counts the digits of the keys."""
    return ids * SORT_KEY_BYTES * (4 * SORT_KEY_BYTES + 1)
