"""Optimizers of rows and of dense parameters, and their schedules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from embark_jax._base.config import Config

DENSE_EPS = 1e-8


class ConstantScheduleConfig(Config):
    """The whole rate, after a warm-up in which it rises linearly from 0."""

    kind: Literal["constant"] = "constant"
    warmup_steps: NonNegativeInt = 0
    """Steps in which the rate rises linearly from 0."""


class CosineScheduleConfig(Config):
    """Half a cosine, after the warm-up, down to ``end_factor`` of the rate
    (https://arxiv.org/abs/1608.03983, without restarts)."""

    kind: Literal["cosine"] = "cosine"
    warmup_steps: NonNegativeInt = 0
    """Steps in which the rate rises linearly from 0."""
    decay_steps: PositiveInt | None = None
    """Steps of the decay; None takes all steps after the warm-up."""
    end_factor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the rate at which the decay ends."""


class PolynomialScheduleConfig(Config):
    """The whole rate for ``hold_steps`` after the warm-up, then ``(1 - t) ** power``
    down to ``end_factor`` of it; MLPerf's DLRM has power 2."""

    kind: Literal["polynomial"] = "polynomial"
    warmup_steps: NonNegativeInt = 0
    """Steps in which the rate rises linearly from 0."""
    hold_steps: NonNegativeInt = 0
    """Steps of the whole rate between warm-up and decay."""
    decay_steps: PositiveInt | None = None
    """Steps of the decay; None takes all remaining steps."""
    power: PositiveFloat = 1.0
    """Exponent of the decay; 1 is linear."""
    end_factor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the rate at which the decay ends."""


class StepScheduleConfig(Config):
    """A rate that is multiplied by ``factor`` at each of these steps, after a
    warm-up."""

    kind: Literal["steps"] = "steps"
    warmup_steps: NonNegativeInt = 0
    """Steps in which the rate rises linearly from 0."""
    at: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    """Steps at which the rate changes."""
    factor: PositiveFloat = 0.1
    """Factor of the rate at each of these steps."""


AnyScheduleConfig = (
    ConstantScheduleConfig
    | CosineScheduleConfig
    | PolynomialScheduleConfig
    | StepScheduleConfig
)
ScheduleConfig = Annotated[AnyScheduleConfig, Field(discriminator="kind")]
"""Schedule: the factor of a learning rate, step by step."""


class EmbeddingOptimizerConfig(Config):
    """The optimizer of embedding rows, applied once to each touched row."""

    kind: Literal["sgd", "adagrad", "rowwise_adagrad", "adam"] = "rowwise_adagrad"
    learning_rate: PositiveFloat = 0.01
    """Rate of the rows of all tables, before the schedule."""
    eps: PositiveFloat = 1e-8
    """Number added to the square root that the adaptive rules divide by."""
    initial_accumulator: NonNegativeFloat = 0.0
    """Initial value of Adagrad's sums of squares."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of Adam's mean gradient."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of Adam's mean squared gradient."""
    weight_decay: NonNegativeFloat = 0.0
    """Share of itself, times the learning rate, that a touched row first loses; rows
    that no id of a batch touches stay as they are."""
    schedule: ScheduleConfig = ConstantScheduleConfig()
    """Change of the rate from step to step."""


class TableOptimizerConfig(Config):
    """The optimizer of one table's rows; None takes that of `embedding.optimizer`."""

    kind: Literal["sgd", "adagrad", "rowwise_adagrad", "adam"] | None = None
    """The rule."""
    learning_rate: PositiveFloat | None = None
    """Rate of the rows, before the schedule."""
    eps: PositiveFloat | None = None
    """Number added to the square root that the adaptive rules divide by."""
    initial_accumulator: NonNegativeFloat | None = None
    """Initial value of Adagrad's sums of squares."""
    beta1: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Decay of Adam's mean gradient."""
    beta2: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Decay of Adam's mean squared gradient."""
    weight_decay: NonNegativeFloat | None = None
    """Share of itself, times the learning rate, that a touched row first loses."""
    schedule: ScheduleConfig | None = None
    """Change of the rate from step to step."""


DENSE_OPTIMIZERS = ("sgd", "adagrad", "adam")


def _dense_kind(kind: str) -> str:
    if kind in DENSE_OPTIMIZERS or re.fullmatch(r"optax\.\w+|[\w.]+:\w+", kind):
        return kind
    raise ValueError(
        f"{kind!r} given, must be {', '.join(DENSE_OPTIMIZERS)}, an optimizer of optax "
        "such as optax.adamw, or one of your own, my_package.my_module:name"
    )


class DenseOptimizerConfig(Config):
    """The optax optimizer of the dense parameters."""

    kind: Annotated[str, AfterValidator(_dense_kind)] = "adagrad"
    """``sgd``, ``adagrad`` or ``adam``; or a function to call as
    ``name(learning_rate=…, **options)``: ``optax.name`` for one of optax, otherwise
    ``MODULE:NAME``."""
    options: Mapping[str, Any] = {}
    """Further arguments of a named optimizer, such as `{weight_decay: 0.01}`."""
    learning_rate: PositiveFloat = 0.01
    """Rate of the dense parameters, before the schedule."""
    eps: PositiveFloat = DENSE_EPS
    """Number added to the square root that the adaptive rules divide by."""
    weight_decay: NonNegativeFloat = 0.0
    """Share of itself, times the learning rate, that a parameter first loses."""
    schedule: ScheduleConfig = ConstantScheduleConfig()
    """Change of the rate from step to step."""
    clip_norm: PositiveFloat | None = None
    """Largest norm of all gradients of dense parameters together; larger ones are
    scaled down to it. Gradients of embeddings are not. None leaves all as they are."""

    @property
    def named(self) -> str | None:
        """``MODULE:NAME`` of the function to call; None for built-in optimizers."""
        return (
            None
            if self.kind in DENSE_OPTIMIZERS
            else self.kind.replace("optax.", "optax:")
        )

    @model_validator(mode="after")
    def _options_agree(self):
        if self.named is None and self.options:
            raise ValueError(f"options are for others than {self.kind}: leave them out")
        if self.named and (self.eps != DENSE_EPS or self.weight_decay):
            raise ValueError(
                f"eps and weight_decay are not passed to {self.kind}: set those that "
                "it takes in options"
            )
        return self
