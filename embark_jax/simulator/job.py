"""Describes what is trained, and on which fleet."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from embark_jax._base.config import ConfigError
from embark_jax.planner.request.dense import (
    NO_NETWORK,
    DenseNetwork,
    dlrm,
    dlrm_dcnv2,
)
from embark_jax.planner.request.table_list import TableList, dense_optimizer_of
from embark_jax.planner.request.workload import Workload
from embark_jax.plans.fleet import Fleet
from embark_jax.plans.options import Dtype, Kernels
from embark_jax.plans.tables import FeatureSpec, TableSpec, embedding_width


@dataclasses.dataclass(frozen=True)
class Job:
    """Everything that a step's time depends on, except where the tables lie.

    Attributes:
      tables, features: those of the model.
      workload: fleet, batch, skew and optimizer of the tables.
      network: the dense layers.
      dtype: data type of the dense layers.
      dense_optimizer: a key of ``planner.workload.STATE_VALUES``.
    """

    tables: Sequence[TableSpec]
    features: Sequence[FeatureSpec]
    workload: Workload
    network: DenseNetwork
    dtype: Dtype
    dense_optimizer: str


def job_of_list(
    listed: TableList,
    fleet: Fleet,
    batch: int | None = None,
    zipf_exponent: float | None = None,
    optimizer: str | None = None,
    kernels: Kernels = "xla",
) -> Job:
    """Returns the job that trains a table list's model, with dense layers in bfloat16.
    Without a dense section it has no dense layers.

    Args:
      listed: the list.
      fleet: the machines.
      batch, zipf_exponent, optimizer, kernels: see ``TableList.workload``.

    Raises:
      ValueError: if the optimizer is unknown.
    """
    tables, features = model = listed.specs()
    workload = listed.workload(fleet, batch, zipf_exponent, optimizer, kernels=kernels)
    dense_optimizer = dense_optimizer_of(workload.optimizer)
    network = NO_NETWORK if listed.dense is None else listed.dense.network(*model)
    return Job(tables, features, workload, network, "bfloat16", dense_optimizer)


def network_of(
    model: Any,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    dense_features: int,
    pool_stride: int = 1,
) -> DenseNetwork:
    """Returns the matrix products of a model that a config describes.

    Args:
      model: section of the config.
      tables, features, dense_features: inputs of the model.
      pool_stride: number of neighbouring columns of the pooled rows that are averaged
        into one.

    Raises:
      ConfigError: if the products of such a model are not known.
    """
    width = embedding_width(tables, features) // pool_stride
    match model.kind:
        case "dlrm_dcnv2":
            return dlrm_dcnv2(
                width,
                dense_features,
                model.bottom,
                model.top,
                model.cross_layers,
                model.cross_rank,
                parallel=model.structure == "parallel",
            )
        case "dlrm":
            return dlrm(len(features), width, dense_features, model.bottom, model.top)
        case _:
            raise ConfigError(
                f"model.kind is {model.kind!r}, whose layers cannot be simulated; "
                "choose dlrm_dcnv2 or dlrm"
            )
