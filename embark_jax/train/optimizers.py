"""Both optimizers of a run, with their current learning rates."""

from __future__ import annotations

import optax
from embark_kernels import RowOptimizer

from embark_jax.config import ExperimentConfig
from embark_jax.dataset import blaming
from embark_jax.train.dense_optimizers import build_dense_optimizer
from embark_jax.train.row_optimizers import build_embedding_optimizer


def build_optimizers(
    config: ExperimentConfig, steps: int, factor: float = 1.0
) -> tuple[optax.GradientTransformation, RowOptimizer]:
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

    with blaming("dense_optimizer.schedule"):
        dense = build_dense_optimizer(lowered(config.dense_optimizer), steps)
    with blaming("embedding.optimizer.schedule"):
        return dense, build_embedding_optimizer(
            lowered(config.embedding.optimizer), steps
        )
