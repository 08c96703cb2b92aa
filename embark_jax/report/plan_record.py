"""Plans as JSON for other programs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from embark_jax.plans.placement import Placement
from embark_jax.plans.plan import Plan
from embark_jax.plans.prediction import Breakdown, Prediction
from embark_jax.plans.wire import VALUE_BYTES


def plan_record(plan: Plan) -> dict[str, Any]:
    """Spells out the content of a plan: its predicted cost, every table and every
    shard.

    Row shard j of a table holds the rows ``range(row_start, row_stop, row_stride)``, a
    column shard the columns ``range(column_start, column_stop)``. A replicated table,
    and the hot rows of one, are listed as one shard for each device.

    Raises:
      ValueError: if the plan has no prediction.
    """
    prediction = plan.prediction
    if prediction is None:
        raise ValueError("the plan has no prediction: it was not made by the planner")
    return {
        "kernels": prediction.kernels,
        "overlap": prediction.overlap,
        "placeholders": prediction.placeholders,
        "advice": prediction.advice,
        "by_memory": [dataclasses.asdict(each) for each in prediction.by_memory],
        "stored_bytes": prediction.stored_bytes,
        "step_ms": prediction.step_ms,
        "lower_bound_ms": prediction.lower_bound_ms,
        "gap": prediction.gap if math.isfinite(prediction.gap) else None,
        "per_device": [
            {"device": device, "load_ms": load_ms, "memory_bytes": memory_bytes}
            for device, (load_ms, memory_bytes) in enumerate(
                zip(prediction.device_ms, prediction.device_bytes, strict=True)
            )
        ],
        "tables": [_table(placement, prediction) for placement in plan.placements],
        "breakdown": _breakdown(prediction.breakdown),
        "shards": _shards(plan),
    }


def _table(placement: Placement, prediction: Prediction) -> dict[str, Any]:
    """Returns where a table lies; ``stored_bytes`` are those of its parameters in host
    memory or on disks, where all of its rows have room."""
    breakdown, table = prediction.breakdown, placement.table
    name = table.name
    return {
        "table": name,
        "tier": table.tier,
        "slots": table.slots,
        "stored_bytes": table.cached
        * table.rows
        * table.dim
        * VALUE_BYTES[table.dtype],
        "cluster": placement.cluster,
        "row_shards": placement.row_shards,
        "column_shards": placement.column_shards,
        "hot_rows": placement.hot_rows,
        "hottest_row_shard": breakdown.hottest_row_shard[name],
        "step_ms": breakdown.table_ms[name],
    }


def _breakdown(breakdown: Breakdown) -> dict[str, Any]:
    """Returns all of a breakdown but its values of single tables."""
    of_tables = "table_ms", "hottest_row_shard"
    values = dataclasses.asdict(breakdown)
    return {k: v for k, v in values.items() if k not in of_tables}


def _shards(plan: Plan) -> list[dict[str, Any]]:
    """Returns all shards, table by table, of which some rows may lie in DP."""
    records = [
        {
            "table": plan.tables[shard["table"]].name,
            "cluster": storage.kind.cluster,
            "row_shard": int(shard["row_shard"]),
            "column_shard": int(shard["column_shard"]),
            "device": device,
            "row_start": int(shard["first_row"]),
            "row_stop": int(
                shard["first_row"] + (shard["rows"] - 1) * shard["stride"] + 1
            ),
            "row_stride": int(shard["stride"]),
            "column_start": int(shard["first_column"]),
            "column_stop": int(shard["first_column"] + shard["columns"]),
        }
        for storage in plan.storages
        for shard in storage.shards
        for device in (
            range(plan.devices) if storage.replicated else [int(shard["owner"])]
        )
    ]
    number = {table.name: i for i, table in enumerate(plan.tables)}
    return sorted(records, key=lambda record: number[record["table"]])
