"""The published models of ``configs/models``, by their names."""

import dataclasses
from pathlib import Path

from embark_jax.planner import TableList, plan_for, read_table_list
from embark_jax.plans.fleet import dgx_h100
from embark_jax.plans.plan import Plan
from embark_jax.plans.tables import FeatureSpec, TableSpec

FOLDER = Path(__file__).parents[2] / "configs" / "models"
# Name and nodes: the gap when prices or the search last changed, rounded up.
GAPS = {
    ("DLRM-DCNv2", 1): 0.09,
    ("T180", 1): 0.02,
    ("T200", 2): 0.04,
    ("T510", 1): 0.02,
    ("T510", 8): 0.07,
    ("T7", 8): 0.03,
    ("T7", 16): 0.05,
}
ZIPF_EXPONENT = 1.1
"""Of EMBark's released generator; the paper says 1.2."""


def table_list(name: str) -> TableList:
    """Such as "DLRM-DCNv2", from dlrm_dcnv2.yaml."""
    path = FOLDER / f"{name.lower().replace('-', '_')}.yaml"
    return read_table_list(path.read_text())


def model(name: str) -> tuple[list[TableSpec], list[FeatureSpec]]:
    """Tables and features of a published model."""
    return table_list(name).specs()


def t7_of(gpus: int, host_bytes: float) -> Plan:
    """T7's plan with tables wherever there is room, on a node of so many GPUs."""
    listed = table_list("T7")
    tables, features = listed.specs()
    tables = [dataclasses.replace(table, tier="auto") for table in tables]
    machines = dgx_h100(1, gpus)
    device = dataclasses.replace(machines.device, host_memory_bytes=host_bytes / gpus)
    machines = dataclasses.replace(machines, device=device)
    return plan_for(listed.workload(machines), tables, features)
