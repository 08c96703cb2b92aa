"""What each device does in a step of EMBark's system, counted from a placement.

Nothing is padded: messages are as long as what is in them. Ids are those of the
expectation, so that devices differ by what they own alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from embark_jax.planner.cost.shapes import Shapes
from embark_jax.planner.layout.storage import Placement, row_ranges
from embark_jax.planner.request.workload import Workload
from embark_jax.tables import FeatureSpec


@dataclasses.dataclass(frozen=True, eq=False)
class Loads:
    """Counts of one step; arrays are ``[devices]`` unless they say otherwise.

    "Values" are parameters: as many as a row, or a sum of rows, has columns.

    Attributes:
      ids: of RB that reach the owner.
      id_values: values of their rows.
      bags: (sample, shard) pairs that the owner pools for.
      sums: values of its partial sums.
      filled: those of bags that have an id of the shard.
      touched: values of its rows that the batch touches, of RB and UB.
      node_sums: ``[nodes]`` values a sample of sums that leave the node, the partial
        sums of its devices added up.
      repeated_ids: of UB, that a requester makes unique.
      unique_ids, unique_values: of UB, that it then sends to all owners.
      received_ids, received_values: of UB, that an owner receives.
      pooled_values: of UB, that every requester pools from the rows it got.
      local_ids, local_values: of DP, that every device looks up.
      replicated_values: of all DP tables.
      outputs: values a sample of all pooled rows but those of DP.
    """

    ids: np.ndarray
    id_values: np.ndarray
    bags: np.ndarray
    sums: np.ndarray
    filled: np.ndarray
    touched: np.ndarray
    node_sums: np.ndarray
    repeated_ids: float
    unique_ids: float
    unique_values: float
    received_ids: np.ndarray
    received_values: np.ndarray
    pooled_values: float
    local_ids: float
    local_values: float
    replicated_values: float
    outputs: float


def count(
    placements: Sequence[Placement],
    features: Sequence[FeatureSpec],
    workload: Workload,
) -> Loads:
    """The loads of all tables together.

    Args:
      placements: of every table, on the workload's devices.
      features: of the model.
      workload: fleet, batch and skew.
    """
    devices, gpus = workload.devices, workload.fleet.gpus_per_node
    arrays = {
        name: np.zeros(devices)
        for name in (
            *("ids", "id_values", "bags", "sums", "filled", "touched"),
            *("received_ids", "received_values"),
        )
    }
    node_sums = np.zeros(workload.fleet.nodes)
    totals = dict.fromkeys(
        (
            *("repeated_ids", "unique_ids", "unique_values", "pooled_values"),
            *("local_ids", "local_values", "replicated_values", "outputs"),
        ),
        0.0,
    )
    for rows in row_ranges(placements):
        shapes = Shapes.of_rows(rows, features, workload)
        use = shapes.uses[0]
        hotness = use.hotness * use.filled
        own_ids = workload.device_batch * hotness
        if rows.cluster == "dp":
            totals["local_ids"] += own_ids
            totals["local_values"] += own_ids * use.dim
            totals["replicated_values"] += use.rows * use.dim
            continue
        totals["outputs"] += use.dim * use.bags
        owners = np.array(rows.devices)
        j, k = np.divmod(np.arange(len(owners)), rows.column_shards)
        width = rows.width

        def add(name, values, owners=owners):
            np.add.at(arrays[name], owners, values)

        add("touched", shapes.batch_unique[j] * width)
        ids = shapes.batch_ids[j]
        if rows.cluster == "ub":
            unique = use.skew.expected_unique(use.rows, own_ids)
            totals["repeated_ids"] += own_ids
            totals["unique_ids"] += unique * rows.column_shards
            totals["unique_values"] += unique * use.dim
            totals["pooled_values"] += own_ids * use.dim
            received = devices * unique * (shapes.shard_rows / use.rows)[j]
            add("received_ids", received)
            add("received_values", received * width)
            continue
        samples = workload.batch_size * use.bags
        empty = (1 - shapes.shares[j]) ** (hotness / use.bags)
        add("ids", ids)
        add("id_values", ids * width)
        add("bags", samples)
        add("sums", samples * width)
        add("filled", samples * (1 - empty) * width)
        nodes = np.unique(np.stack([owners // gpus, k]), axis=1)[0]
        np.add.at(node_sums, nodes, width * use.bags)
    return Loads(**arrays, node_sums=node_sums, **totals)
