"""TorchRec's plans as placements of ours."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embark_jax.planner import Workload
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec

SCRIPT = Path(__file__).parent / "ask_torchrec.py"


def ask(
    python: Path,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    workload: Workload,
    memory_share: float,
    limit_s: float,
    all_kernels: bool = False,
) -> dict[str, Any]:
    """What ``ask_torchrec.py`` answers, or an ``"error"`` after ``limit_s``.

    Args:
      python: of an environment that has TorchRec.
      tables, features, workload: to plan for.
      memory_share: of the devices' memory that it may use.
      limit_s: it is stopped after so many seconds.
      all_kernels: whether it weighs kernels that keep tables in host memory too.

    Raises:
      RuntimeError: with what TorchRec printed, if it breaks.
    """
    device = workload.fleet.device
    request = {
        "tables": [
            {
                "name": table.name,
                "rows": table.rows,
                "dim": table.dim,
                "hotness": [f.hotness for f in features if f.table == table.name],
            }
            for table in tables
        ],
        "devices": workload.devices,
        "gpus_per_node": workload.fleet.gpus_per_node,
        "device_batch": workload.device_batch,
        "optimizer": workload.optimizer,
        "all_kernels": all_kernels,
        "memory_bytes": memory_share * device.memory_bytes,
        "memory_bytes_per_s": device.memory_bytes_per_s,
        "node_link_bytes_per_s": device.node_link_bytes_per_s,
        "network_bytes_per_s": device.network_bytes_per_s,
    }
    try:
        answered = subprocess.run(
            [python, SCRIPT],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no plan within {limit_s:.0f} s"}
    if answered.returncode:
        raise RuntimeError(f"TorchRec failed: {answered.stderr[-2000:]}")
    return json.loads(answered.stdout)


def placements(
    answer: Mapping[str, Any], tables: Sequence[TableSpec]
) -> tuple[Placement, ...]:
    """The plan of an answer.

    TorchRec's sharded tables are pooled by the owner: RB. Its row shards are blocks of
    neighbouring rows, ours take every n-th row, which under a power law are far more
    even: the price of its row-wise tables is that of even row shards, so lower than
    what it would pay.

    Raises:
      ValueError: if the shards of a table are no grid of equal widths.
    """
    return tuple(_placement(table, answer["tables"][table.name]) for table in tables)


def _placement(table: TableSpec, planned: Mapping[str, Any]) -> Placement:
    reason = planned["sharding"]
    if reason == "data_parallel":
        return Placement(table, "dp", reason=reason)
    # The last blocks of few rows on many devices hold none.
    shards = [shard for shard in planned["shards"] if all(shard[3:])]
    owners = {(row, column): device for device, row, column, *_ in shards}
    rows, columns = ({corner[axis] for corner in owners} for axis in (0, 1))
    widths = {shard[4] for shard in shards}
    if len(widths) != 1 or len(owners) != len(rows) * len(columns):
        raise ValueError(f"table {table.name!r}: its shards are no even grid: {shards}")
    devices = tuple(owners[corner] for corner in sorted(owners))
    return Placement(table, "rb", len(rows), len(columns), devices, reason=reason)
