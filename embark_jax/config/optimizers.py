"""Optimizers of a config, of rows and of the dense part, and their schedules."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from embark_jax.config.base import Config


class ConstantScheduleConfig(Config):
    """The whole rate, after a warm-up that rises in a line from 0."""

    kind: Literal["constant"] = "constant"
    warmup_steps: NonNegativeInt = 0


class CosineScheduleConfig(Config):
    """After the warm-up half a cosine down to ``end_factor`` of the rate
    (https://arxiv.org/abs/1608.03983, without restarts)."""

    kind: Literal["cosine"] = "cosine"
    warmup_steps: NonNegativeInt = 0
    decay_steps: PositiveInt | None = None
    """None is all steps after the warm-up."""
    end_factor: Annotated[float, Field(ge=0, le=1)] = 0.0


class PolynomialScheduleConfig(Config):
    """After the warm-up ``hold_steps`` of the whole rate, then ``(1 - t) ** power``
    down to ``end_factor`` of it; MLPerf's DLRM has power 2."""

    kind: Literal["polynomial"] = "polynomial"
    warmup_steps: NonNegativeInt = 0
    hold_steps: NonNegativeInt = 0
    decay_steps: PositiveInt | None = None
    """None is all steps that are left."""
    power: PositiveFloat = 1.0
    end_factor: Annotated[float, Field(ge=0, le=1)] = 0.0


class StepScheduleConfig(Config):
    """After the warm-up the rate is multiplied by ``factor`` at each of these steps."""

    kind: Literal["steps"] = "steps"
    warmup_steps: NonNegativeInt = 0
    at: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    factor: PositiveFloat = 0.1


AnyScheduleConfig = (
    ConstantScheduleConfig
    | CosineScheduleConfig
    | PolynomialScheduleConfig
    | StepScheduleConfig
)
ScheduleConfig = Annotated[AnyScheduleConfig, Field(discriminator="kind")]
"""The factor of a learning rate, step by step."""


class EmbeddingOptimizerConfig(Config):
    """Applied once to each touched row."""

    kind: Literal["sgd", "adagrad", "rowwise_adagrad", "adam"] = "rowwise_adagrad"
    learning_rate: PositiveFloat = 0.01
    eps: PositiveFloat = 1e-8
    initial_accumulator: NonNegativeFloat = 0.0
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    weight_decay: NonNegativeFloat = 0.0
    """A touched row first loses this share of itself, times the learning rate; rows
    that no id of a batch touches are left as they are."""
    schedule: ScheduleConfig = ConstantScheduleConfig()


class DenseOptimizerConfig(Config):
    """The optax optimizer of the dense parameters."""

    kind: Literal["sgd", "adagrad", "adam"] = "adagrad"
    learning_rate: PositiveFloat = 0.01
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0
    schedule: ScheduleConfig = ConstantScheduleConfig()
    clip_norm: PositiveFloat | None = None
    """Gradients of the dense parameters are scaled down to this norm of all of them
    together; those of embeddings are not."""
