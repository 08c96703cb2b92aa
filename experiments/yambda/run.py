"""Plans DLRMv4's tables for 8, 16 and 32 H200 with the skew of generated events, and
says what deduplication saves; writes results.json.

    python -m experiments.yambda.run
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from embark_jax import planner
from embark_jax.data.prepare.yambda_files import Yambda
from embark_jax.plans.fleet import dgx_h200
from embark_jax.plans.wire import Wire
from embark_jax.statistics.accesses import FeatureAccess, Statistics, TableAccess
from embark_jax.statistics.histogram import Histogram
from experiments.yambda import skew

HERE = Path(__file__).parent
LIST = HERE.parents[1] / "configs" / "models" / "dlrm_v4.yaml"
FLOPS_A_SAMPLE = 315.7e9
MFU = 0.247
"""Of the reference, with deduplication."""
ROW_BYTES = 2 * 512
PUBLISHED_MS = {8: (941.6, 805.7), 16: (1108.0, 818.0)}
"""Without and with deduplication, on MI350X."""


def statistics_of(lookups: dict[str, skew.Lookups]) -> Statistics:
    """What a device looks up in a step: neighbouring samples share most ids, so that
    random samples would say too many unique ones."""
    tables, features = {}, {}
    for table, (ids, counts) in lookups.items():
        name = f"{table}_id"
        histogram = Histogram.from_counts(ids, counts)
        tables[name] = TableAccess(skew.ROWS[table], histogram)
        listed = planner.load_table_list(str(LIST)).specs()[1]
        for feature in listed:
            if feature.table == name:
                mean = counts.sum() / skew.BATCH - 1 if feature.hotness > 1 else 1.0
                features[feature.name] = FeatureAccess(
                    float(mean), feature.hotness, len(ids)
                )
    return Statistics(samples=skew.BATCH, features=features, tables=tables)


def exchange_ms(rows: dict[str, float], load: dict[str, float], fleet: Any) -> float:
    """Time in which a device's rows come, and gradients go, over the slower of both
    kinds of links; the fullest owner is the last."""
    total = sum(rows[table] * load[table] for table in rows) * ROW_BYTES
    devices, efficiency = fleet.devices, fleet.efficiency
    inside = total * (fleet.gpus_per_node - 1) / devices
    between = total * (devices - fleet.gpus_per_node) / devices
    device = fleet.device
    inside_s = inside / (device.node_link_bytes_per_s * efficiency.link)
    between_s = between / (device.network_bytes_per_s * efficiency.link)
    return 2e3 * max(inside_s, between_s)


def case(nodes: int) -> dict[str, Any]:
    fleet = dgx_h200(nodes)
    of_devices = list(skew.steps(Yambda(), fleet.devices))
    listed = planner.load_table_list(str(LIST))
    workload = listed.workload(fleet, skew.BATCH * fleet.devices, overlap=False)
    workload = dataclasses.replace(
        workload,
        statistics=statistics_of(of_devices[0]),
        wire=Wire(rows="float16", gradients="float16"),
    )
    plan = planner.plan_for(workload, *listed.specs())
    prediction = plan.prediction
    assert prediction is not None
    all_ids = {t: float(of_devices[0][t].counts.sum()) for t in skew.TABLES}
    unique = {t: float(len(of_devices[0][t].ids)) for t in skew.TABLES}
    row_wise = {t: skew.row_wise_load(of_devices, t) for t in skew.TABLES}
    in_turn = {t: skew.unique_load(of_devices, t) for t in skew.TABLES}
    dense_ms = 1e3 * FLOPS_A_SAMPLE * skew.BATCH / (MFU * fleet.device.flops_per_s)
    with_ms, without_ms = (
        exchange_ms(unique, in_turn, fleet),
        exchange_ms(all_ids, row_wise, fleet),
    )
    received = np.zeros(fleet.devices)
    for lookups in of_devices:
        for table in skew.TABLES:
            owners = lookups[table].ids % fleet.devices
            received += np.bincount(owners, minlength=fleet.devices)
    return {
        "devices": fleet.devices,
        "storages": [storage.name for storage in plan.storages],
        "planned_bytes": max(prediction.device_bytes),
        "embedding_ms": prediction.step_ms,
        "row_wise_load": row_wise,
        "unique_load": in_turn,
        "received_largest_over_mean": received.max() / received.mean(),
        "exchange_ms": {"without": without_ms, "with": with_ms},
        "dense_ms": dense_ms,
        "published_ms": PUBLISHED_MS.get(fleet.devices),
    }


if __name__ == "__main__":
    results = [case(nodes) for nodes in (1, 2, 4)]
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    for result in results:
        print(result)
