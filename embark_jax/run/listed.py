"""Plans configs and table lists, whose model nobody builds, as its products are
known."""

from __future__ import annotations

from typing import Any

from embark_jax._base.config import ConfigError, config_error_at
from embark_jax._base.devices import has_gpu
from embark_jax.config import ExperimentConfig, SyntheticConfig
from embark_jax.config.models import ModelConfig
from embark_jax.planner import TableList
from embark_jax.planner.request.dense import DenseNetwork, network_of
from embark_jax.planner.request.workload import STATE_VALUES
from embark_jax.plans.options import DENSE_OPTIMIZERS
from embark_jax.run import planning
from embark_jax.run.planning import Planned
from embark_jax.statistics.accesses import NO_STATISTICS, Statistics


def plan_described(
    config: ExperimentConfig,
    listed: TableList | None,
    statistics: Statistics = NO_STATISTICS,
    advise: bool = False,
) -> Planned:
    """Plans a config, or the table list that it is of. A list needs no JAX if the
    config names a fleet, on a computer without a GPU.

    Args:
      config: the config, with the changes of the user.
      listed: the list.
      statistics: statistics of the ids; without them bags have the mean lengths that a
        list says.
      advise: whether to try what would make it faster.

    Raises:
      ConfigError: if no plan is possible; also as ``plan_model`` does.
      DataError: as ``plan_model`` does.
    """
    if listed is None:
        from embark_jax.run.experiment import plan_model

        return plan_model(config, statistics, advise)
    embedding, data = config.embedding, config.data
    model: Any = config.model
    assert isinstance(data, SyntheticConfig)
    table_rows, features = embedding.declared("a table list has them")
    with config_error_at("embedding.tables"):
        tables = [embedding.table(name, rows) for name, rows in table_rows.items()]
    network, dtype = DenseNetwork(), "bfloat16"
    # The model is the list's own, whose keys are not read, or that of a config without.
    is_own = type(model) is ModelConfig
    is_none = listed.dense is None and model == ModelConfig.model_validate({})
    if not (is_own or is_none):
        stride = listed.dense.pool_stride if listed.dense else 1
        network = network_of(model, tables, features, data.dense_features, stride)
        if network is None:
            raise ConfigError(
                f"model.kind is {model.kind!r}, whose products are not known; choose "
                "dlrm_dcnv2 or dlrm"
            )
        dtype = model.compute_dtype
    elif listed.dense is not None:
        network = listed.dense.network(tables, features)
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
    return planning.plan_of(
        config,
        data.zipf_exponent,
        dense,
        kernels,
        tables,
        features,
        statistics if statistics.samples else listed.statistics(),
        advise,
    )
