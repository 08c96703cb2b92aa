"""Plans a table list: a config whose model nobody builds, as its products are known."""

from __future__ import annotations

from typing import Any

from embark_jax._base.config import ConfigError, config_error_at
from embark_jax._base.devices import has_gpu
from embark_jax.config import ExperimentConfig, SyntheticConfig
from embark_jax.config.models import ModelConfig
from embark_jax.planner import TableList, Workload
from embark_jax.planner.request.dense import DenseNetwork, network_of
from embark_jax.planner.request.workload import STATE_VALUES
from embark_jax.plans.options import DENSE_OPTIMIZERS
from embark_jax.plans.plan import Plan
from embark_jax.run import planning
from embark_jax.statistics.accesses import NO_STATISTICS, Statistics


def plan_list(
    config: ExperimentConfig,
    listed: TableList,
    statistics: Statistics = NO_STATISTICS,
) -> tuple[Workload, Plan]:
    """Plans a table list. Needs no JAX if the config names a fleet, on a computer
    without a GPU.

    Args:
      config: the list as a config, with the changes of the user.
      listed: the list.
      statistics: statistics of the ids; without them bags have the mean lengths that
        the list says.

    Raises:
      ConfigError: if no plan is possible.
    """
    embedding, data = config.embedding, config.data
    model: Any = config.model
    assert isinstance(data, SyntheticConfig)
    table_rows, features = embedding.declared("a table list has them")
    with config_error_at("embedding.tables"):
        tables = [embedding.table(name, rows) for name, rows in table_rows.items()]
    network, dtype = DenseNetwork(), "bfloat16"
    if listed.dense is not None and _is_unread(config):
        network = listed.dense.network(tables, features)
    elif not is_embeddings_alone(config, listed):
        stride = listed.dense.pool_stride if listed.dense else 1
        network = network_of(model, tables, features, data.dense_features, stride)
        if network is None:
            raise ConfigError(
                f"model.kind is {model.kind!r}, whose products are not known; choose "
                "dlrm_dcnv2 or dlrm"
            )
        dtype = model.compute_dtype
    kind = config.dense_optimizer.kind
    if kind in DENSE_OPTIMIZERS:
        states = STATE_VALUES[kind][0]
    else:
        from embark_jax.run.optimizers import state_values

        states = state_values(config.dense_optimizer)
    dense = network.load(states, config.train.dense, dtype)
    kernels = "xla"
    if config.embedding.kernels != "auto" or has_gpu():
        kernels = planning.kernels(config)
    load = planning.workload_of(
        config,
        data.zipf_exponent,
        dense,
        kernels,
        tables,
        features,
        statistics if statistics.samples else listed.statistics(),
    )
    made = planning.plan_of(config, load, tables, features)
    return load, made


def is_embeddings_alone(config: ExperimentConfig, listed: TableList) -> bool:
    """Says whether nothing is known of the dense layers: the list has none, and nobody
    changed those of a config without a model."""
    return listed.dense is None and (
        _is_unread(config) or config.model == ModelConfig.model_validate({})
    )


def _is_unread(config: ExperimentConfig) -> bool:
    """Says whether the model is the list's own, whose keys are not read."""
    return type(config.model) is ModelConfig
