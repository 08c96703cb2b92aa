"""Optimizers of table rows, written once for plain XLA and for the kernel.

A rule turns the states and the summed gradient of a row into new states and a change to
subtract from the row, in float32. It is applied once to each touched row. It does not
see the row, so plain XLA need not read the row before writing it; a rule with weight
decay says which share of the row stays.
Plain XLA calls a rule with all rows, ``[rows, width]``; the kernel with one row
``[width]`` and, where XLA has ``[rows, 1]``, a scalar.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

States = dict[str, jax.Array]


class RowMath(NamedTuple):
    """Operations that differ between plain XLA and the kernel.

    Attributes:
      sqrt: the square root of numbers >= 0.
      fill: spreads one number per row over the row's width.
    """

    sqrt: Callable[[jax.Array], jax.Array]
    fill: Callable[[jax.Array], jax.Array]


class RowOptimizer(Protocol):
    """A rule for touched rows.

    ``row_wise`` rules take the mean of gradient² over the *whole* row, even if its
    columns lie in several tables.
    """

    @property
    def learning_rate(self) -> float: ...

    @property
    def row_wise(self) -> bool: ...

    @property
    def initial_state(self) -> float:
        """The initial value of all states."""
        ...

    def state_widths(self, width: int) -> dict[str, int]:
        """Returns how many values each state keeps for a row of ``width``
        parameters."""
        ...

    def step_factors(self, step: jax.Array) -> tuple[jax.Array, ...]:
        """Returns ``[]`` float32 numbers that depend on the step alone."""
        ...

    def kept(self, factors: tuple[jax.Array, ...]) -> jax.Array | None:
        """Returns the ``[]`` share of a touched row that stays before the change is
        subtracted; None means all of it."""
        ...

    def update(
        self,
        states: States,
        gradient: jax.Array,
        mean_square: jax.Array | None,
        factors: tuple[jax.Array, ...],
        math: RowMath,
    ) -> tuple[jax.Array, States]:
        """Returns the change to subtract from the row, and the new states."""
        ...


@dataclasses.dataclass(frozen=True)
class SGD:
    """``row -= learning_rate * gradient``."""

    learning_rate: float
    row_wise = False
    initial_state = 0.0

    def state_widths(self, width):
        return {}

    def step_factors(self, step):
        return ()

    def kept(self, factors):
        return None

    def update(self, states, gradient, mean_square, factors, math):
        return self.learning_rate * gradient, {}


@dataclasses.dataclass(frozen=True)
class Adagrad:
    """``accumulator += gradient²; row -= lr * gradient / (sqrt(accumulator) + eps)``.

    Source: https://jmlr.org/papers/v12/duchi11a.html, with eps where PyTorch and the
    MLPerf reference have it.
    """

    learning_rate: float
    eps: float = 1e-8
    initial_accumulator: float = 0.0
    row_wise = False

    @property
    def initial_state(self):
        return self.initial_accumulator

    def state_widths(self, width):
        return {"accumulator": width}

    def step_factors(self, step):
        return ()

    def kept(self, factors):
        return None

    def update(self, states, gradient, mean_square, factors, math):
        accumulator = states["accumulator"] + gradient * gradient
        scaled = gradient / (math.sqrt(accumulator) + self.eps)
        return self.learning_rate * scaled, {"accumulator": accumulator}


@dataclasses.dataclass(frozen=True)
class RowwiseAdagrad:
    """Adagrad with one accumulator per row, for the mean square over the row.

    It equals FBGEMM's EXACT_ROWWISE_ADAGRAD (https://github.com/pytorch/FBGEMM).
    """

    learning_rate: float
    eps: float = 1e-8
    initial_accumulator: float = 0.0
    row_wise = True

    @property
    def initial_state(self):
        return self.initial_accumulator

    def state_widths(self, width):
        return {"accumulator": 1}

    def step_factors(self, step):
        return ()

    def kept(self, factors):
        return None

    def update(self, states, gradient, mean_square, factors, math):
        accumulator = states["accumulator"] + mean_square
        rate = self.learning_rate / (math.sqrt(accumulator) + self.eps)
        return math.fill(rate) * gradient, {"accumulator": accumulator}


@dataclasses.dataclass(frozen=True)
class LazyAdam:
    """Adam (https://arxiv.org/abs/1412.6980), in which only touched rows' moments
    decay.

    The bias correction counts steps of the run, not touches of the row, like
    TensorFlow Addons' LazyAdam.
    """

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    row_wise = False
    initial_state = 0.0

    def state_widths(self, width):
        return {"mean": width, "variance": width}

    def step_factors(self, step):
        count = step.astype(jnp.float32)
        return 1 / (1 - self.beta1**count), 1 / (1 - self.beta2**count)

    def kept(self, factors):
        return None

    def update(self, states, gradient, mean_square, factors, math):
        mean = self.beta1 * states["mean"] + (1 - self.beta1) * gradient
        variance = self.beta2 * states["variance"] + (1 - self.beta2) * (
            gradient * gradient
        )
        mean_hat, variance_hat = (
            moment * math.fill(factor)
            for moment, factor in zip((mean, variance), factors, strict=True)
        )
        scaled = mean_hat / (math.sqrt(variance_hat) + self.eps)
        return self.learning_rate * scaled, {"mean": mean, "variance": variance}


@dataclasses.dataclass(frozen=True)
class Scheduled:
    """A rule whose learning rate follows a schedule, and whose touched rows decay.

    It computes ``row = (1 - rate * weight_decay) * row - change``, with the step's
    ``rate``. The decay is decoupled from the gradient as in AdamW
    (https://arxiv.org/abs/1711.05101), but lazy: rows that a batch does not touch stay
    as they are.

    Args:
      rule: a rule whose change is proportional to its learning rate, like all of these.
      schedule: maps the ``[]`` float32 number of earlier steps to a factor of the
        learning rate.
      weight_decay: 0 or more.
    """

    rule: RowOptimizer
    schedule: Callable[[jax.Array | int], jax.Array | float] = lambda steps: 1.0
    weight_decay: float = 0.0

    @property
    def learning_rate(self):
        return self.rule.learning_rate

    @property
    def row_wise(self):
        return self.rule.row_wise

    @property
    def initial_state(self):
        return self.rule.initial_state

    def state_widths(self, width):
        return self.rule.state_widths(width)

    def step_factors(self, step):
        steps_before = jnp.asarray(step - 1, jnp.float32)
        factor = jnp.asarray(self.schedule(steps_before), jnp.float32)
        return factor, *self.rule.step_factors(step)

    def kept(self, factors):
        if not self.weight_decay:
            return None
        return 1 - self.learning_rate * self.weight_decay * factors[0]

    def update(self, states, gradient, mean_square, factors, math):
        factor, *rest = factors
        change, states = self.rule.update(
            states, gradient, mean_square, tuple(rest), math
        )
        return math.fill(factor) * change, states
