"""Optimizers of a config, of rows and of the dense part, and their schedules."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from embark_jax.config.base import Config


class ConstantScheduleConfig(Config):
    """The whole rate, after a warm-up that rises in a line from 0."""

    kind: Literal["constant"] = "constant"
    warmup_steps: NonNegativeInt = 0
    """Steps in which the rate rises in a line from 0."""


class CosineScheduleConfig(Config):
    """After the warm-up half a cosine down to ``end_factor`` of the rate
    (https://arxiv.org/abs/1608.03983, without restarts)."""

    kind: Literal["cosine"] = "cosine"
    warmup_steps: NonNegativeInt = 0
    """Steps in which the rate rises in a line from 0."""
    decay_steps: PositiveInt | None = None
    """Steps of the decay; None takes all steps after the warm-up."""
    end_factor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the rate at which the decay ends."""


class PolynomialScheduleConfig(Config):
    """After the warm-up ``hold_steps`` of the whole rate, then ``(1 - t) ** power``
    down to ``end_factor`` of it; MLPerf's DLRM has power 2."""

    kind: Literal["polynomial"] = "polynomial"
    warmup_steps: NonNegativeInt = 0
    """Steps in which the rate rises in a line from 0."""
    hold_steps: NonNegativeInt = 0
    """Steps of the whole rate between warm-up and decay."""
    decay_steps: PositiveInt | None = None
    """Steps of the decay; None takes all steps that are left."""
    power: PositiveFloat = 1.0
    """Exponent of the decay; 1 is a line."""
    end_factor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the rate at which the decay ends."""


class StepScheduleConfig(Config):
    """After the warm-up the rate is multiplied by ``factor`` at each of these steps."""

    kind: Literal["steps"] = "steps"
    warmup_steps: NonNegativeInt = 0
    """Steps in which the rate rises in a line from 0."""
    at: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    """Steps at which the rate changes."""
    factor: PositiveFloat = 0.1
    """What the rate is multiplied by at each of them."""


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
    """Rate of the rows of all tables, before the schedule."""
    eps: PositiveFloat = 1e-8
    """Added to the square root that the adaptive rules divide by."""
    initial_accumulator: NonNegativeFloat = 0.0
    """Where Adagrad's sums of squares start."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of Adam's mean gradient."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of Adam's mean squared gradient."""
    weight_decay: NonNegativeFloat = 0.0
    """A touched row first loses this share of itself, times the learning rate; rows
    that no id of a batch touches are left as they are."""
    schedule: ScheduleConfig = ConstantScheduleConfig()
    """How the rate changes from step to step."""


class DenseOptimizerConfig(Config):
    """The optax optimizer of the dense parameters."""

    kind: Literal["sgd", "adagrad", "adam"] = "adagrad"
    learning_rate: PositiveFloat = 0.01
    """Rate of the dense parameters, before the schedule."""
    eps: PositiveFloat = 1e-8
    """Added to the square root that the adaptive rules divide by."""
    weight_decay: NonNegativeFloat = 0.0
    """A parameter first loses this share of itself, times the learning rate."""
    schedule: ScheduleConfig = ConstantScheduleConfig()
    """How the rate changes from step to step."""
    clip_norm: PositiveFloat | None = None
    """Gradients of the dense parameters are scaled down to this norm of all of them
    together; those of embeddings are not. None leaves them as they are."""
