"""Jobs: models of table lists, under the conditions of a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from embark_jax.planner import TableList, Workload
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
    """Returns the job that trains a table list's model, with dense layers in bfloat16,
    or none if the list has none; arguments are those of ``TableList.workload``."""
    return Job(*listed.specs(), listed.workload(fleet, batch, **changes))
