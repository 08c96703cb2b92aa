"""Training systems: MLPerf's DLRM-DCNv2 submissions, simulated as HugeCTR's step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embark_jax import simulator
from embark_jax.config.table_lists import read_table_list
from experiments.embark_table1.job import job_of_list
from experiments.embark_table1.placements import Settings, embark, table_bytes
from experiments.embark_table1.system import simulate_embark
from experiments.predicted_measured.cases import Case, fleet_of, measured

MODEL = Path(__file__).parents[2] / "configs" / "models" / "dlrm_dcnv2.yaml"


def predicted(record: dict[str, Any]) -> simulator.Simulation:
    """Simulates a step of one submission, with the placements that the
    ``sharding/planner.py`` beside its ``train.py`` makes with its settings."""
    machines = fleet_of(record)
    listed = read_table_list(MODEL.read_text())
    job = job_of_list(listed, machines, record["batch"], kernels="mosaic_gpu")
    least_bytes = 1e9 * record["dp_threshold_gb"]
    clusters = [
        "dp" if table_bytes(table, job.workload) < least_bytes else "rb"
        for table in job.tables
    ]
    settings = Settings(
        record["mem_comm_bw_ratio"],
        node_communication=1.0,
        on_nodes=record["sharding"] == "hier_auto",
        by_columns=False,
    )
    model = job.tables, job.features, job.workload
    placements = embark(*model, clusters, settings)
    return simulate_embark("HugeCTR", job, placements)


def cases() -> Iterator[Case]:
    """Yields a case for each submission."""
    for record, address in measured("systems"):
        yield Case(
            "systems",
            record["name"],
            "M samples/s",
            record["samples_per_s"] / 1e6,
            predicted(record).samples_per_s / 1e6,
            address,
        )
