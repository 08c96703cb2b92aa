"""Jobs: models of table lists, under the conditions of a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from embark_jax.config.table_lists import TableList, dense_optimizer_of
from embark_jax.planner import Workload
from embark_jax.planner.request.dense import NO_DENSE, network_of
from embark_jax.planner.request.workload import STATE_VALUES
from embark_jax.plans.fleet import Fleet
from embark_jax.plans.tables import FeatureSpec, TableSpec


@dataclasses.dataclass(frozen=True)
class Job:
    """Everything that a step's time depends on, except where the tables lie.

    Attributes:
      tables, features: those of the model.
      workload: fleet, batch, skew, optimizer, and the dense layers.
    """

    tables: Sequence[TableSpec]
    features: Sequence[FeatureSpec]
    workload: Workload


def job_of_list(
    listed: TableList, fleet: Fleet, batch: int | None = None, **changes: Any
) -> Job:
    """Returns the job that trains a table list's model on a fleet, with dense layers in
    bfloat16, or none if the list has none, and with changes of the workload's fields.
    The defaults are 65,536 samples a step and uniform ids."""
    tables, features = listed.specs()
    optimizer = changes.get("optimizer", listed.optimizer or "rowwise_adagrad")
    dense, layers = NO_DENSE, listed.dense
    if layers is not None:
        network = network_of(layers, tables, features, layers.features)
        assert network is not None
        dense = network.load(STATE_VALUES[dense_optimizer_of(optimizer)][0])
    fields = {
        "batch_size": batch or listed.batch or 65_536,
        "zipf_exponent": listed.zipf_exponent or 0.0,
        "optimizer": optimizer,
        "dense": dense,
        "overlap": not fleet.shared,
        "sample_ids": sum(feature.hotness for feature in features),
    }
    return Job(tables, features, Workload(fleet, **fields | changes))
