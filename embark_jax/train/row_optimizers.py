"""The optimizers of embedding rows."""

from __future__ import annotations

from embark_kernels.optimizers import ROW_OPTIMIZERS, RowOptimizer, parameters

from embark_jax.config import EmbeddingOptimizerConfig
from embark_jax.train.schedules import build_schedule


def build_embedding_optimizer(
    config: EmbeddingOptimizerConfig, steps: int
) -> RowOptimizer:
    """Builds the row optimizer that a config describes, in a run of ``steps`` steps."""
    rule = ROW_OPTIMIZERS[config.kind]
    return rule(
        config.learning_rate,
        **{name: getattr(config, name) for name in parameters(rule)},
        schedule=build_schedule(config.schedule, steps),
        weight_decay=config.weight_decay,
        weight_decay_mode=config.weight_decay_mode,
    )
