"""The optimizers of dense parameters and of rows, and the loss, as a config says."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from embark_kernels.optimizers import ROW_OPTIMIZERS, RowOptimizer, parameters

from embark_jax._base.config import ConfigError, config_error_at
from embark_jax.config import (
    AnyScheduleConfig,
    DenseOptimizerConfig,
    EmbeddingOptimizerConfig,
    ExperimentConfig,
    NamedOptimizerConfig,
    call_named,
    import_named,
    tasks_of,
)
from embark_jax.embedding.rules import RowRules
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
    with config_error_at("dense_optimizer"):
        dense = build_dense_optimizer(config.dense_optimizer, steps, factor)
    embedding = config.embedding
    with config_error_at("embedding.optimizer"):
        rule = build_embedding_optimizer(embedding.optimizer, steps, factor)
    named = {}
    for name in {embedding.rule_of(table) for table in embedding.tables} - {""}:
        with config_error_at(f"embedding.tables.{name}.optimizer"):
            own = embedding.optimizer_of(name)
            named[name] = build_embedding_optimizer(own, steps, factor)
    return Optimizers(dense, RowRules(rule, named) if named else rule)


def build_embedding_optimizer(
    config: EmbeddingOptimizerConfig, steps: int, factor: float = 1.0
) -> RowOptimizer:
    """Builds the row optimizer that a config describes, in a run of ``steps`` steps,
    with this factor of its learning rate."""
    rule = ROW_OPTIMIZERS[config.kind]
    return rule(
        config.learning_rate * factor,
        **{name: getattr(config, name) for name in parameters(rule)},
        schedule=build_schedule(config.schedule, steps),
        weight_decay=config.weight_decay,
    )


def build_dense_optimizer(
    config: DenseOptimizerConfig, steps: int, factor: float = 1.0
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
    and the further keys; gradients are clipped before.

    Args:
      config: describes it.
      steps: number of steps of the whole run.
      factor: factor of the learning rate.

    Raises:
      ConfigError: if there is none of that name, or it takes other arguments.
      ValueError: as ``build_schedule`` does.
    """
    learning_rate = config.learning_rate * factor
    schedule = build_schedule(config.schedule, steps)
    clip = []
    if config.clip_norm is not None:
        clip = [optax.clip_by_global_norm(config.clip_norm)]
    if isinstance(config, NamedOptimizerConfig):
        rate: optax.ScalarOrSchedule = learning_rate
        if schedule is not None:
            rate = lambda count: learning_rate * schedule(count)  # noqa: E731
        name = config.kind.replace("optax.", "optax:")
        optimizer = call_named(name, learning_rate=rate, **config.options)
        if not isinstance(optimizer, optax.GradientTransformation):
            raise ConfigError(
                f"{config.kind}: gives a {type(optimizer).__name__}, must give an "
                "optax GradientTransformation"
            )
        return optax.chain(*clip, optimizer) if clip else optimizer
    own = config.model_dump(include={"eps", "weight_decay"})
    weight_decay = own.pop("weight_decay")
    scale = {
        "sgd": optax.identity,
        "adagrad": scale_by_adagrad,
        "adam": functools.partial(optax.scale_by_adam, b1=0.9, b2=0.999),
    }[config.kind](**own)
    # Options that are not used leave no trace in the state, which checkpoints hold.
    scale = optax.chain(*clip, scale) if clip else scale
    decay = (
        optax.add_decayed_weights(weight_decay) if weight_decay else optax.identity()
    )
    rate_of_step = optax.scale_by_learning_rate(learning_rate)
    if schedule is not None:
        rate_of_step = optax.chain(rate_of_step, optax.scale_by_schedule(schedule))
    return optax.chain(scale, decay, rate_of_step)


def state_values(config: DenseOptimizerConfig) -> int:
    """Returns how many float32 values the optimizer keeps for each parameter."""
    optimizer = build_dense_optimizer(config, steps=np.iinfo(np.int32).max)
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
    match config.kind:
        case "constant":
            if not warmup:
                return None
            after = optax.constant_schedule(1.0)
        case "cosine":
            left = _share_left(steps, warmup)
            after = lambda count: jnp.sin(np.pi / 2 * left(count)) ** 2  # noqa: E731
        case "polynomial":
            left = _share_left(steps, warmup, config.hold_steps)
            after = lambda count: left(count) ** config.power  # noqa: E731
        case "steps":
            if min(config.at) <= warmup:
                raise ValueError(
                    f"schedule.at has step {min(config.at)}, must be after the "
                    f"{warmup} of the warm-up"
                )
            after = optax.piecewise_constant_schedule(
                1.0, {step - warmup: config.factor for step in config.at}
            )
    if not warmup:
        return after
    # The first step is taken with 1 / warmup of the rate, not with 0.
    rise = optax.linear_schedule(1 / warmup, 1.0, max(warmup - 1, 1))
    return optax.join_schedules([rise, after], [warmup])


def _share_left(steps: int, warmup: int, hold: int = 0) -> optax.Schedule:
    """Returns the share of the steps after warm-up and hold that is left, by the number
    of steps since the warm-up. A difference of whole numbers, it is not rounded to 0
    before the end, as one minus the share that is done would be."""
    end, decay = steps - warmup, steps - warmup - hold
    if decay <= 0:
        raise ValueError(
            f"schedule: warm-up and hold take {warmup + hold} steps, must be fewer "
            f"than the {steps} of the run"
        )
    return lambda count: jnp.clip((end - count) / decay, 0.0, 1.0)


def build_loss(config: ExperimentConfig) -> Loss:
    """Returns the loss that a config describes."""
    options = config.train
    if options.loss is not None:
        return import_named(options.loss)
    weights = [options.task_weights.get(task, 1.0) for task in tasks_of(config.model)]
    return BinaryCrossEntropy(
        options.label_smoothing, options.embedding_l2, tuple(weights)
    )
