"""Training systems: MLPerf's DLRM-DCNv2 submissions, simulated as HugeCTR's step."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embark_jax.config.table_lists import read_table_list
from embark_jax.plans.options import ClusterName
from embark_jax.plans.placement import Placement
from experiments.embark_table1.job import Job, job_of_list
from experiments.embark_table1.placements import Settings, embark, table_bytes
from experiments.embark_table1.system import simulate_embark
from experiments.predicted_measured.cases import (
    Case,
    Constants,
    fitted,
    fleet_of,
    measured,
)

SETTING = (
    "batch",
    "fleet",
    "nodes",
    "gpus_per_node",
    "sharp",
    "sharding",
    "mem_comm_bw_ratio",
    "dp_threshold_gb",
)
"""What a simulation depends on: many submissions share it."""
MODEL = Path(__file__).parents[2] / "configs" / "models" / "dlrm_dcnv2.yaml"


@functools.cache
def placements_of(setting: str) -> list[Placement]:
    """Returns the placements that the ``sharding/planner.py`` beside a submission's
    ``train.py`` makes with its settings, a record as JSON."""
    record = json.loads(setting)
    job = job_of(record, fitted())
    least_bytes = 1e9 * record["dp_threshold_gb"]
    clusters: list[ClusterName] = [
        "dp" if table_bytes(table, job.workload) < least_bytes else "rb"
        for table in job.tables
    ]
    settings = Settings(
        record["mem_comm_bw_ratio"],
        node_communication=1.0,
        on_nodes=record["sharding"] == "hier_auto",
        by_columns=False,
    )
    return embark(job.tables, job.features, job.workload, clusters, settings)


def job_of(record: dict[str, Any], constants: Constants) -> Job:
    listed = read_table_list(MODEL.read_text())
    machines = fleet_of(record, constants)
    return job_of_list(listed, machines, record["batch"], kernels="mosaic_gpu")


@functools.cache
def samples_per_s(setting: str, constants: Constants) -> float:
    """Simulates a step of one submission."""
    job = job_of(json.loads(setting), constants)
    return simulate_embark("HugeCTR", job, placements_of(setting)).samples_per_s


def cases(constants: Constants) -> Iterator[Case]:
    """Yields a case for each submission."""
    for record, address in measured("systems"):
        setting = {key: value for key, value in record.items() if key in SETTING}
        predicted = samples_per_s(json.dumps(setting), constants)
        yield Case(
            "systems",
            record["name"],
            "M samples/s",
            record["samples_per_s"] / 1e6,
            predicted / 1e6,
            address,
        )
