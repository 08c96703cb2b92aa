"""Kernels: lookups and updates on one GPU, priced as the planner prices them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from embark_jax.planner import price
from embark_jax.planner.cost.rates import Rates
from embark_jax.planner.request.workload import STATE_VALUES, Workload
from embark_jax.plans import fleet
from embark_jax.plans.fleet import Efficiency
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.statistics.skew import Zipf
from experiments.predicted_measured.cases import Case, Constants, measured

PHASES = {
    "forward": ("lookup",),
    "eval": ("lookup",),
    "backward": ("sort", "gradients", "update"),
}
"""The phases of our step that do what an operation does."""
LAUNCHES = {"forward": 1, "eval": 1, "backward": 12}
"""Kernels of an operation, as FBGEMM launches them."""
WIDE_KEYS = 2
"""FBGEMM sorts keys of 64 bits, ours have 32."""
FLOAT_BYTES = 4


def bytes_alone(efficiency: Efficiency) -> Efficiency:
    """Returns the efficiency of kernels that take no time of their own: those of our
    step are more than those of an operation."""
    return dataclasses.replace(efficiency, kernel_us=0.0)


def workload_of(record: dict[str, Any], efficiency: Efficiency) -> Workload:
    """Returns the workload of a record: one H100, ids by the power law."""
    return Workload(
        dataclasses.replace(fleet.dgx_h100(1, 1), efficiency=bytes_alone(efficiency)),
        batch_size=record["batch"],
        zipf_exponent=record["exponent"],
        optimizer=record["optimizer"],
        kernels="mosaic_gpu",
    )


def device_ms(record: dict[str, Any], efficiency: Efficiency) -> float:
    """Returns the planner's price of an operation whose rows lie on the device."""
    workload = workload_of(record, efficiency)
    tables = [
        TableSpec(f"t{i}", record["rows"], record["dim"])
        for i in range(record["tables"])
    ]
    priced = price(
        [Placement(table, "dp") for table in tables],
        [FeatureSpec(table.name) for table in tables],
        workload,
    )
    chosen = PHASES[record["operation"]]
    ms = LAUNCHES[record["operation"]] * efficiency.kernel_us / 1e3
    for item in priced.work_items():
        if item.phase in chosen:
            times = WIDE_KEYS if item.phase == "sort" else 1
            ms += times * item.step_ms.sum(axis=0).max()
    return float(ms)


def host_ms(record: dict[str, Any], values: int, efficiency: Efficiency) -> float:
    """Returns the price of reading each looked-up row from host memory, or, in an
    update, of reading and writing so many values for each parameter of the rows that
    the batch touches, both ways added as the planner does."""
    workload = workload_of(record, efficiency)
    if record["operation"] == "backward":
        skew = Zipf(record["exponent"])
        rows = 2 * values * skew.expected_unique(record["rows"], record["batch"])
    else:
        rows = record["batch"]
    moved_bytes = record["tables"] * rows * record["dim"] * FLOAT_BYTES
    return float(Rates(workload.fleet).store_ms(moved_bytes, 0.0))


def predicted(record: dict[str, Any], efficiency: Efficiency) -> float:
    """Returns the price of a record's operation, in milliseconds."""
    states = STATE_VALUES[record["optimizer"]][0]
    match record["memory"]:
        case "device":
            return device_ms(record, efficiency)
        case "device, states on the host":
            rows = {**record, "optimizer": "sgd"}
            host = host_ms(record, states, efficiency)
            return device_ms(rows, efficiency) + host
        case "host":
            return host_ms(record, 1 + states, efficiency)
    raise ValueError(f"{record['name']}: memory is {record['memory']!r}")


def cases(constants: Constants) -> Iterator[Case]:
    """Yields a case for each operation."""
    for record, address in measured("kernels"):
        ms = predicted(record, constants.hopper)
        yield Case("kernels", record["name"], "ms", record["ms"], ms, address)
