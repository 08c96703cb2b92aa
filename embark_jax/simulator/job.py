"""What is trained, and on what."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from embark_jax.config import ConfigError
from embark_jax.fleet import Fleet
from embark_jax.planner.request.dense import DenseNetwork
from embark_jax.planner.request.table_list import TableList, dense_optimizer_of
from embark_jax.planner.request.workload import Workload
from embark_jax.simulator.dense import DType
from embark_jax.tables import FeatureSpec, TableSpec

WIDE_ROWS = 2**32
"""A table with more makes all ids of HugeCTR 64 bits wide: its ``i64_input_key``."""


@dataclasses.dataclass(frozen=True)
class Job:
    """All that a step's time depends on, but where the tables lie.

    Attributes:
      tables, features: the model's.
      workload: fleet, batch, skew and optimizer of the tables.
      network: the dense layers.
      dtype: that this package computes them in; EMBark's system takes float16.
      dense_optimizer: a key of ``planner.workload.STATE_VALUES``.
    """

    tables: Sequence[TableSpec]
    features: Sequence[FeatureSpec]
    workload: Workload
    network: DenseNetwork
    dtype: DType
    dense_optimizer: str

    @property
    def embark_key_bytes(self) -> int:
        """Bytes of an id in HugeCTR."""
        return 8 if any(table.rows > WIDE_ROWS for table in self.tables) else 4


def job_of_list(
    listed: TableList,
    fleet: Fleet,
    batch: int | None = None,
    zipf_exponent: float | None = None,
    optimizer: str | None = None,
) -> Job:
    """The model of a table list, with its dense layers in bfloat16.

    Args:
      listed: the list.
      fleet: the machines.
      batch, zipf_exponent, optimizer: see ``TableList.workload``.

    Raises:
      ConfigError: if the list says nothing of the dense layers.
      ValueError: if the optimizer is unknown.
    """
    if listed.dense is None:
        raise ConfigError(
            "table list: has no dense section, which a step's time depends on; those "
            "in configs/models/ show one"
        )
    tables, features = listed.specs()
    workload = listed.workload(fleet, batch, zipf_exponent, optimizer)
    dense_optimizer = dense_optimizer_of(workload.optimizer)
    network = listed.dense.network(tables, features)
    return Job(tables, features, workload, network, "bfloat16", dense_optimizer)
