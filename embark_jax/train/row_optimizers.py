"""The optimizers of embedding rows."""

from __future__ import annotations

from typing import Any, cast

import optax
from embark_kernels import (
    SGD,
    Adagrad,
    LazyAdam,
    RowOptimizer,
    RowwiseAdagrad,
    Scheduled,
)

from embark_jax.config import EmbeddingOptimizerConfig
from embark_jax.train.schedules import build_schedule


def build_embedding_optimizer(
    config: EmbeddingOptimizerConfig, steps: int
) -> RowOptimizer:
    """Builds the row optimizer that a config describes, in a run of ``steps`` steps."""
    rate, eps = config.learning_rate, config.eps
    match config.kind:
        case "sgd":
            rule = SGD(rate)
        case "adagrad":
            rule = Adagrad(rate, eps, config.initial_accumulator)
        case "rowwise_adagrad":
            rule = RowwiseAdagrad(rate, eps, config.initial_accumulator)
        case "adam":
            rule = LazyAdam(rate, config.beta1, config.beta2, eps)
    schedule = build_schedule(config.schedule, steps)
    if schedule is None and not config.weight_decay:
        return rule
    following = cast(Any, schedule or optax.constant_schedule(1.0))
    return Scheduled(rule, following, config.weight_decay)
