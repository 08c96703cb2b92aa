"""Counts what each device does in a step of EMBark's system, given a placement.

Nothing is padded: messages are as long as their content. Numbers of ids are expected
values, so devices differ only in what they own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embark_jax.planner.cost.candidates import candidates_of, uses_of
from embark_jax.planner.request.workload import Workload
from embark_jax.plans.placement import Placement, row_ranges
from embark_jax.plans.tables import FeatureSpec


@dataclass(frozen=True, eq=False)
class Loads:
    """Counts of one step; arrays are ``[devices]`` unless they say otherwise.

    "Values" are numbers of a row, or of a sum of rows: one for each column.

    Attributes:
      ids: RB ids that reach the owner.
      id_values: values of the rows of these ids.
      bags: (sample, shard) pairs that the owner pools for.
      sums: values of the owner's partial sums.
      filled: values of those partial sums whose bag has an id of the shard.
      touched: values of the owner's RB and UB rows that the batch touches.
      node_sums: ``[nodes]`` values per sample of the sums that leave the node, after
        the partial sums of its devices are added up.
      repeated_ids: UB ids that a requester makes unique.
      unique_ids, unique_values: UB ids that a requester then sends to all owners, and
        values of their rows.
      received_ids, received_values: UB ids that an owner receives, and values of their
        rows.
      pooled_values: values that every requester pools from the UB rows it received.
      local_ids, local_values: DP ids that every device looks up, and values of their
        rows.
      replicated_values: values of all DP tables.
      outputs: values per sample of all pooled rows but those of DP.
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
      placements: placement of every table on the workload's devices.
      features: features of the model.
      workload: fleet, batch and skew.
    """
    shuffle = np.random.default_rng(0)
    devices, gpus = workload.devices, workload.fleet.gpus_per_node
    arrays = {
        name: np.zeros(devices)
        for name in (
            "ids",
            "id_values",
            "bags",
            "sums",
            "filled",
            "touched",
            "received_ids",
            "received_values",
        )
    }
    node_sums = np.zeros(workload.fleet.nodes)
    totals = dict.fromkeys(
        (
            "repeated_ids",
            "unique_ids",
            "unique_values",
            "pooled_values",
            "local_ids",
            "local_values",
            "replicated_values",
            "outputs",
        ),
        0.0,
    )
    ranges = row_ranges(placements)
    uses = uses_of(ranges, features, workload)
    of_ranges = [
        candidates_of([rows], [use], workload)
        for rows, use in zip(ranges, uses, strict=True)
    ]
    for rows, candidate in zip(ranges, of_ranges, strict=True):
        use = candidate.uses[0]
        hotness = use.hotness * use.filled
        own_ids = workload.device_batch * hotness
        if rows.cluster == "dp":
            totals["local_ids"] += own_ids
            totals["local_values"] += own_ids * use.table.dim
            totals["replicated_values"] += use.rows * use.table.dim
            continue
        totals["outputs"] += use.table.dim * use.bags
        owners = np.array(rows.devices)
        j, k = np.divmod(np.arange(len(owners)), rows.column_shards)
        # EMBark's ids are shuffled: the hottest row is on any shard of its table.
        j = shuffle.permutation(rows.row_shards)[j]
        width = rows.table.dim // rows.column_shards

        def add(name, values, owners=owners):
            np.add.at(arrays[name], owners, values)

        add("touched", candidate.batch_unique[j] * width)
        ids = candidate.batch_ids[j]
        if rows.cluster == "ub":
            unique = use.skew.expected_unique(use.rows, own_ids)
            totals["repeated_ids"] += own_ids
            totals["unique_ids"] += unique * rows.column_shards
            totals["unique_values"] += unique * use.table.dim
            totals["pooled_values"] += own_ids * use.table.dim
            received = devices * unique * (candidate.shard_rows / use.rows)[j]
            add("received_ids", received)
            add("received_values", received * width)
            continue
        samples = workload.batch_size * use.bags
        empty = (1 - candidate.shares[j]) ** (hotness / use.bags)
        add("ids", ids)
        add("id_values", ids * width)
        add("bags", samples)
        add("sums", samples * width)
        add("filled", samples * (1 - empty) * width)
        nodes = np.unique(np.stack([owners // gpus, k]), axis=1)[0]
        np.add.at(node_sums, nodes, width * use.bags)
    return Loads(**arrays, node_sums=node_sums, **totals)
