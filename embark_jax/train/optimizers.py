"""Both optimizers of a run, with their current learning rates."""

from __future__ import annotations

import optax

from embark_jax._base.config import config_error_at
from embark_jax.config import ExperimentConfig
from embark_jax.embedding.rules import AnyRule, RowRules
from embark_jax.train.dense_optimizers import build_dense_optimizer
from embark_jax.train.row_optimizers import build_embedding_optimizer


def build_optimizers(
    config: ExperimentConfig, steps: int, factor: float = 1.0
) -> tuple[optax.GradientTransformation, AnyRule]:
    """Builds the optimizers of the dense parameters and of rows.

    Args:
      config: config of the experiment.
      steps: number of steps of the whole run.
      factor: factor of all learning rates.

    Raises:
      ConfigError: if a schedule does not fit the run, or there is no such optimizer.
    """

    def lowered(config):
        rate = config.learning_rate * factor
        return config.model_copy(update={"learning_rate": rate})

    with config_error_at("dense_optimizer.schedule"):
        dense = build_dense_optimizer(lowered(config.dense_optimizer), steps)
    embedding = config.embedding
    with config_error_at("embedding.optimizer.schedule"):
        rule = build_embedding_optimizer(lowered(embedding.optimizer), steps)
    named = {}
    for name in {embedding.rule_of(table) for table in embedding.tables} - {""}:
        with config_error_at(f"embedding.tables.{name}.optimizer.schedule"):
            own = lowered(embedding.optimizer_of(name))
            named[name] = build_embedding_optimizer(own, steps)
    return dense, RowRules(rule, named) if named else rule
