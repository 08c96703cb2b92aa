"""The published models of ``configs/models``, by their names."""

import dataclasses
from pathlib import Path
from typing import Any

from embark_jax.config import EmbeddingConfig
from embark_jax.config.table_lists import (
    TableList,
    dense_optimizer_of,
    experiment_of,
    read_table_list,
)
from embark_jax.planner import Workload, plan_for
from embark_jax.planner.request.dense import NO_DENSE, network_of
from embark_jax.planner.request.workload import STATE_VALUES
from embark_jax.plans.fleet import Fleet, dgx_h100
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


def workload(
    listed: TableList, machines: Fleet, batch: int | None = None, **changes: Any
) -> Workload:
    """What trains a list's model on machines, with changes of its fields."""
    tables, features = listed.specs()
    optimizer = listed.optimizer or "rowwise_adagrad"
    dense, layers = NO_DENSE, listed.dense
    if layers is not None:
        network = network_of(layers, tables, features, layers.features)
        assert network is not None
        dense = network.load(STATE_VALUES[dense_optimizer_of(optimizer)][0])
    said = EmbeddingConfig.model_validate(experiment_of(listed)["embedding"])
    fields = {
        "batch_size": batch or listed.batch or 65_536,
        "zipf_exponent": listed.zipf_exponent or 0.0,
        "optimizer": optimizer,
        "statistics": said.mean_lengths(),
        "dense": dense,
        "overlap": not machines.shared,
        "sample_ids": sum(feature.hotness for feature in features),
    }
    return Workload(machines, **fields | changes)


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
    return plan_for(workload(listed, machines), tables, features)
