"""Learning rates over the steps of a run."""

from __future__ import annotations

from typing import assert_never

import optax

from embark_jax.config import (
    AnyScheduleConfig,
    ConstantScheduleConfig,
    CosineScheduleConfig,
    PolynomialScheduleConfig,
    StepScheduleConfig,
)


def build_schedule(config: AnyScheduleConfig, steps: int) -> optax.Schedule | None:
    """Builds the factor of a learning rate by the number of steps before.

    Args:
      config: shape of the schedule.
      steps: number of steps of the whole run.

    Returns:
      An optax schedule; None where the factor is always 1.

    Raises:
      ValueError: if warm-up and hold leave no step for the part after them.
    """
    warmup = config.warmup_steps
    match config:
        case ConstantScheduleConfig():
            if not warmup:
                return None
            after = optax.constant_schedule(1.0)
        case CosineScheduleConfig():
            decay = config.decay_steps or _left(steps, warmup)
            after = optax.cosine_decay_schedule(1.0, decay, config.end_factor)
        case PolynomialScheduleConfig():
            hold = config.hold_steps
            decay = config.decay_steps or _left(steps, warmup + hold)
            after = optax.polynomial_schedule(
                1.0, config.end_factor, config.power, decay, transition_begin=hold
            )
        case StepScheduleConfig():
            if min(config.at) <= warmup:
                raise ValueError(
                    f"at has step {min(config.at)}, must be after the {warmup} of the "
                    "warm-up"
                )
            after = optax.piecewise_constant_schedule(
                1.0, {step - warmup: config.factor for step in config.at}
            )
        case _:
            assert_never(config)
    if not warmup:
        return after
    # The first step is taken with 1 / warmup of the rate, not with 0.
    rise = optax.linear_schedule(1 / warmup, 1.0, max(warmup - 1, 1))
    return optax.join_schedules([rise, after], [warmup])


def _left(steps: int, before: int) -> int:
    if steps <= before:
        raise ValueError(
            f"warm-up and hold take {before} steps, must be fewer than the {steps} of "
            "the run; or set decay_steps"
        )
    return steps - before
