"""Optimizers of embedding rows: one rule, applied once to each touched row.

The same rule runs for all clusters on the summed gradient of a row, so that a plan
never changes the result. All arithmetic is float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Protocol

import jax
import jax.numpy as jnp

State = Mapping[str, jax.Array]


class RowOptimizer(Protocol):
    """A rule for touched rows.

    ``row_wise`` rules take the mean of the squared gradient over the *whole* row, which
    for a column-sharded table lies on several devices; the collection gathers it.
    """

    @property
    def learning_rate(self) -> float: ...

    @property
    def row_wise(self) -> bool: ...

    def state_widths(self, width: int) -> dict[str, int]:
        """Values kept for a row of ``width`` parameters, by name of the state."""
        ...

    @property
    def initial_state(self) -> float:
        """Value that all states start from."""
        ...

    def update(
        self,
        row: jax.Array,
        state: State,
        gradient: jax.Array,
        mean_square: jax.Array | None,
        step: jax.Array,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """New rows and states.

        Args:
          row: ``[rows, width]``.
          state: ``[rows, state width]`` each.
          gradient: ``[rows, width]``, summed over the batch.
          mean_square: ``[rows, 1]`` for a row-wise rule, else None.
          step: ``[]`` number of this step, from 1.
        """
        ...


@dataclasses.dataclass(frozen=True)
class SGD:
    """``row -= learning_rate * gradient``."""

    learning_rate: float
    row_wise = False
    initial_state = 0.0

    def state_widths(self, width: int) -> dict[str, int]:
        return {}

    def update(self, row, state, gradient, mean_square, step):
        return row - self.learning_rate * gradient, {}


@dataclasses.dataclass(frozen=True)
class Adagrad:
    """``accumulator += gradient²; row -= lr * gradient / (sqrt(accumulator) + eps)``.

    https://jmlr.org/papers/v12/duchi11a.html, with eps where PyTorch and the MLPerf
    reference have it.
    """

    learning_rate: float
    eps: float = 1e-8
    initial_accumulator: float = 0.0
    row_wise = False

    @property
    def initial_state(self) -> float:
        return self.initial_accumulator

    def state_widths(self, width: int) -> dict[str, int]:
        return {"accumulator": width}

    def update(self, row, state, gradient, mean_square, step):
        accumulator = state["accumulator"] + gradient * gradient
        scaled = gradient / (jnp.sqrt(accumulator) + self.eps)
        return row - self.learning_rate * scaled, {"accumulator": accumulator}


@dataclasses.dataclass(frozen=True)
class RowwiseAdagrad:
    """Adagrad with one accumulator a row, of the mean square over the row.

    As FBGEMM's EXACT_ROWWISE_ADAGRAD (https://github.com/pytorch/FBGEMM).
    """

    learning_rate: float
    eps: float = 1e-8
    initial_accumulator: float = 0.0
    row_wise = True

    @property
    def initial_state(self) -> float:
        return self.initial_accumulator

    def state_widths(self, width: int) -> dict[str, int]:
        return {"accumulator": 1}

    def update(self, row, state, gradient, mean_square, step):
        accumulator = state["accumulator"] + mean_square
        scaled = gradient / (jnp.sqrt(accumulator) + self.eps)
        return row - self.learning_rate * scaled, {"accumulator": accumulator}


@dataclasses.dataclass(frozen=True)
class LazyAdam:
    """Adam (https://arxiv.org/abs/1412.6980) whose moments decay only when touched.

    The bias correction counts steps of the run, not touches of the row, as
    TensorFlow Addons' LazyAdam does.
    """

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    row_wise = False
    initial_state = 0.0

    def state_widths(self, width: int) -> dict[str, int]:
        return {"mean": width, "variance": width}

    def update(self, row, state, gradient, mean_square, step):
        mean = self.beta1 * state["mean"] + (1 - self.beta1) * gradient
        variance = self.beta2 * state["variance"] + (1 - self.beta2) * gradient**2
        count = step.astype(jnp.float32)
        mean_hat = mean / (1 - self.beta1**count)
        variance_hat = variance / (1 - self.beta2**count)
        scaled = mean_hat / (jnp.sqrt(variance_hat) + self.eps)
        return row - self.learning_rate * scaled, {"mean": mean, "variance": variance}
