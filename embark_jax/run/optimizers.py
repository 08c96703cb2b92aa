"""The optimizers of dense parameters and of rows, and the loss, as a config says."""

from __future__ import annotations

import functools
import sys
from typing import Any, NamedTuple, assert_never

import jax
import jax.numpy as jnp
import optax
from embark_kernels.optimizers import ROW_OPTIMIZERS, RowOptimizer, parameters

from embark_jax._base.config import ConfigError, config_error_at
from embark_jax.config import (
    AnyScheduleConfig,
    ConstantScheduleConfig,
    CosineScheduleConfig,
    DenseOptimizerConfig,
    EmbeddingOptimizerConfig,
    ExperimentConfig,
    PolynomialScheduleConfig,
    StepScheduleConfig,
    call_named,
    import_named,
    tasks_of,
)
from embark_jax.embedding.rules import RowRules
from embark_jax.plans.options import DENSE_OPTIMIZERS
from embark_jax.train.losses import BinaryCrossEntropy, Loss
from embark_jax.train.state import Optimizers


def build_optimizers(
    config: ExperimentConfig, steps: int, factor: float = 1.0
) -> Optimizers:
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
    return Optimizers(dense, RowRules(rule, named) if named else rule)


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


def build_dense_optimizer(
    config: DenseOptimizerConfig, steps: int
) -> optax.GradientTransformation:
    """Builds the optax optimizer of ``config`` for a run of ``steps`` steps.

    With gradient ``g``, learning rate ``lr`` and weight decay ``wd``, a parameter ``p``
    moves by ``-lr * (u + wd * p)``: the decay is decoupled from the gradient, as in
    AdamW (https://arxiv.org/abs/1711.05101), and acts on all parameters, biases too.
    Gradients are clipped before all else, and the schedule's factor is part of ``lr``.

    - sgd: ``u = g``.
    - adagrad: ``a += g²``, from ``a = 0``, and ``u = g / (sqrt(a) + eps)``.
    - adam: ``m`` and ``v`` are moving averages of ``g`` and ``g²`` with rates 0.9 and
      0.999, corrected for their start at 0, and ``u = m / (sqrt(v) + eps)``
      (https://arxiv.org/abs/1412.6980).

    Any other optimizer is called with its learning rate, which follows the schedule,
    and the options; gradients are clipped before.

    Raises:
      ConfigError: if there is none of that name, or it takes other options.
      ValueError: as ``build_schedule`` does.
    """
    schedule = build_schedule(config.schedule, steps)
    if config.named is not None:
        return _named(config, schedule)
    own = {name: getattr(config, name) for name in DENSE_OPTIMIZERS[config.kind]}
    weight_decay = own.pop("weight_decay")
    scale = {
        "sgd": optax.identity,
        "adagrad": scale_by_adagrad,
        "adam": functools.partial(optax.scale_by_adam, b1=0.9, b2=0.999),
    }[config.kind](**own)
    # Options that are not used leave no trace in the state, which checkpoints hold.
    if config.clip_norm is not None:
        scale = optax.chain(optax.clip_by_global_norm(config.clip_norm), scale)
    decay = (
        optax.add_decayed_weights(weight_decay) if weight_decay else optax.identity()
    )
    rate = optax.scale_by_learning_rate(config.learning_rate)
    if schedule is not None:
        rate = optax.chain(rate, optax.scale_by_schedule(schedule))
    return optax.chain(scale, decay, rate)


def _named(
    config: DenseOptimizerConfig, schedule: optax.Schedule | None
) -> optax.GradientTransformation:
    assert config.named is not None
    rate: optax.ScalarOrSchedule = config.learning_rate
    if schedule is not None:
        rate = functools.partial(_scheduled, config.learning_rate, schedule)
    options = config.options or {}
    optimizer = call_named(config.named, learning_rate=rate, **options)
    if not isinstance(optimizer, optax.GradientTransformation):
        raise ConfigError(
            f"{config.kind}: gives a {type(optimizer).__name__}, must give an optax "
            "GradientTransformation"
        )
    if config.clip_norm is None:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer)


def _scheduled(rate: float, schedule: optax.Schedule, count: Any) -> Any:
    return rate * schedule(count)


def state_values(config: DenseOptimizerConfig) -> int:
    """Returns how many float32 values the optimizer keeps for each parameter."""
    optimizer = build_dense_optimizer(config, steps=sys.maxsize)
    width = 8
    state = jax.eval_shape(optimizer.init, {"w": jnp.zeros(width)})
    return (
        sum(leaf.size for leaf in jax.tree.leaves(state) if leaf.size >= width) // width
    )


class AdagradState(NamedTuple):
    """Sums of squared gradients since the start, shaped like the parameters."""

    accumulator: optax.Params


def scale_by_adagrad(eps: float) -> optax.GradientTransformation:
    """Adagrad's direction ``g / (sqrt(a) + eps)``, with ``a`` the sum of ``g²`` from 0.

    This is the form of PyTorch and of the MLPerf reference. ``optax.adagrad`` differs:
    it starts from 0.1 and divides by ``sqrt(a + eps)``, where an ``eps`` of 1e-8 weighs
    as much as 1e-4 here. A parameter that never had a gradient has ``0 / (0 + eps)``,
    which is 0: it stays where it is. Paper: https://jmlr.org/papers/v12/duchi11a.html.

    Args:
      eps: added to the root; positive, and large enough for float32 to hold.
    """

    def init(params):
        return AdagradState(jax.tree.map(jnp.zeros_like, params))

    def update(updates, state, params=None):
        del params
        accumulator = jax.tree.map(
            lambda a, g: a + jnp.square(g), state.accumulator, updates
        )
        updates = jax.tree.map(
            lambda g, a: g / (jnp.sqrt(a) + eps), updates, accumulator
        )
        return updates, AdagradState(accumulator)

    return optax.GradientTransformation(init, update)


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


def build_loss(config: ExperimentConfig) -> Loss:
    """Returns the loss that a config describes."""
    options = config.train
    if options.loss is not None:
        return import_named(options.loss)
    weights = [options.task_weights.get(task, 1.0) for task in tasks_of(config.model)]
    return BinaryCrossEntropy(
        options.label_smoothing, options.embedding_l2, tuple(weights)
    )
