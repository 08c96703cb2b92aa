"""The least that a train step must move in a device's memory, term by term.

Everything that the step cannot do without is read once and written once, in float32:

- the batch is read, and its ids are sorted once, with 32 bits of key and of position;
- each id's row is gathered, and its bag's gradient in backward; where ids are made
  unique before they travel, owners read each row once more for each device;
- pooled rows are written, touched rows and their states are read and written;
- what travels is written, sent, received and read, as the plan has it;
- a matrix product reads its operands and writes its result, forward, and twice backward
  (once for the first layers, whose inputs need no gradient); cross layers read their
  inputs once more each way, as their products alone do not;
- an optimizer reads parameters, gradients and states, and writes all but the gradients.

How many rows are touched is expected of the ids' skew; a mean over the devices.
"""

from __future__ import annotations

from collections import defaultdict

from embark_jax.planner import Plan, ProgramModel, Workload, phases
from embark_jax.planner.cost import traffic
from embark_jax.planner.cost.shapes import Shapes
from embark_jax.planner.layout.storage import row_ranges
from embark_jax.planner.request.dense import DenseNetwork

SORT_KEY_BYTES = 4
EXCHANGED_IN = {
    "id exchange": "route",
    "row exchange": "lookup",
    "gradient exchange": "row_gradients",
    "square exchange": "row_gradients",
}
"""The phase of the program in which each exchange of the cost model is."""

Terms = dict[tuple[str, str], float]
"""Bytes by phase of the program, and what is moved in it."""


def least_bytes(
    plan: Plan, workload: Workload, network: DenseNetwork, dense_features: int
) -> Terms:
    """The terms of a step.

    Args:
      plan: of the tables.
      workload: that it was made for.
      network: the dense layers.
      dense_features: values a sample that they take beside the embeddings.
    """
    terms: Terms = defaultdict(float)
    batch, value = workload.device_batch, traffic.VALUE_BYTES
    ids = sum(feature.hotness for feature in plan.features)
    terms["route", "batch"] = batch * value * (ids + dense_features + 1)
    per_parameter, per_row = workload.state_values
    for rows in row_ranges(plan.placements):
        shapes = Shapes.of_rows(rows, plan.features, workload)
        (dim,), (hotness,), (filled,) = shapes.dim, shapes.hotness, shapes.filled
        found = batch * hotness * filled
        row_bytes = traffic.rows_bytes(1, dim)
        terms["route", "sort"] += _sort_bytes(found)
        terms["lookup", "rows"] += found * row_bytes
        if rows.cluster == "ub":
            sent = shapes.expected_unique(batch).sum()
            terms["lookup", "rows of owners"] += sent * row_bytes
        terms["lookup", "pooled rows"] += batch * shapes.bags.sum() * row_bytes
        terms["row_gradients", "bag gradients"] += found * row_bytes
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
    _add_dense(terms, network, batch)
    updated = 3 + 2 * workload.dense.states
    terms["dense_update", "parameters"] = value * updated * network.parameters
    return dict(terms)


def _add_dense(terms: Terms, network: DenseNetwork, batch: int) -> None:
    value = traffic.VALUE_BYTES
    for products in (network.bottom, network.cross, network.top):
        for i, (inputs, outputs) in enumerate(products):
            moved = batch * (inputs + outputs) + inputs * outputs
            times = 2 if products is network.bottom and i == 0 else 3
            terms["dense", "products"] += value * times * moved
    # Forward reads x0 and x; backward the gradient, x0 and the product, and writes the
    # gradient of the product and, added up, that of x0.
    crossed = batch * network.width * network.cross_layers
    terms["dense", "cross layers"] = value * (2 + 5) * crossed


def _sort_bytes(ids: float) -> float:
    """Of keys with their positions: each digit reads and writes both; one more pass
    counts the digits of the keys."""
    return ids * SORT_KEY_BYTES * (4 * SORT_KEY_BYTES + 1)
