"""Optimizers of table rows, written once for plain XLA and for the kernel.

A rule turns a row's states and its summed gradient into new states and a change to
subtract from the row, in float32. It is applied once to each touched row. A rule may
read the row, too; plain XLA gathers rows only for optimizers that do.
Plain XLA calls a rule with all rows, ``[rows, width]``; the kernel with one row
``[width]`` and, where XLA has ``[rows, 1]``, a scalar.

Configs and plans read ``ROW_OPTIMIZERS``, so this module imports no JAX.
"""

from __future__ import annotations

import abc
import dataclasses
import inspect
import math
import numbers
from collections.abc import Callable
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
)

from annotated_types import Ge, Gt, Lt
from typing_extensions import Doc

if TYPE_CHECKING:
    import jax

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "LazyAdam",
    "RowOptimizer",
    "RowwiseAdagrad",
]

States = dict[str, "jax.Array"]
Factors = tuple["jax.Array", ...]
IfTaken = Any
"""A float32 array, or None for rules that do not take it."""
Rate = Any
"""A float or, if it follows a schedule, a ``[]`` array."""
LEAST_RATE = 1e-30
"""Rates below it count as 0 where a rule divides by them: times any gradient that a
step applies they are less than float32's rounding of a row of 1e-10."""


class RowMath(NamedTuple):
    """Operations of rules beside arithmetic and comparisons.

    Attributes:
      sqrt: the square root of numbers >= 0.
      where: ``where(condition, a, b)``, as in NumPy.
      fill: spreads one number per row over the row's width.
    """

    sqrt: Callable[[jax.Array], jax.Array]
    where: Callable[..., jax.Array]
    fill: Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class RowOptimizer(abc.ABC):
    """An optimizer of touched rows: a rule, which is a subclass, with its learning rate
    and weight decay. Rows that a batch does not touch stay as they are.

    Args:
      learning_rate: above 0; or, as in optax, a schedule of it, which becomes
        ``schedule``, with a rate of 1.
      schedule: maps the ``[]`` float32 number of earlier steps to a factor of the
        learning rate; None is always 1. Where it is 0, rows stay as they are.
      weight_decay: 0 or more: a row first loses ``rate * weight_decay`` of itself, as
        in AdamW (https://arxiv.org/abs/1711.05101).

    Raises:
      ValueError: if a parameter is no finite number, or out of its range.
    """

    learning_rate: Annotated[float, Gt(0)]
    _: dataclasses.KW_ONLY
    schedule: Callable[[Any], Any] | None = None
    weight_decay: Annotated[float, Ge(0)] = 0.0

    row_wise: ClassVar[bool] = False
    """Whether the rule takes the mean of gradient² over the *whole* row, even if its
    columns lie in several tables."""
    rule_reads_row: ClassVar[bool] = False
    """Whether the rule takes the row."""

    def __post_init__(self):
        if callable(self.learning_rate):
            if self.schedule is not None:
                raise ValueError(
                    f"{type(self).__name__}: learning_rate and schedule are both "
                    "schedules, must be one of them: their product"
                )
            object.__setattr__(self, "schedule", self.learning_rate)
            object.__setattr__(self, "learning_rate", 1.0)
        for name, limits in parameters(RowOptimizer).items():
            _check(self, name, limits)
        for name, limits in parameters(type(self)).items():
            _check(self, name, limits)

    @property
    def initial_state(self) -> float:
        """The initial value of all states."""
        return 0.0

    def state_widths(self, width: int) -> dict[str, int]:
        """Returns how many values each state keeps for a row of ``width``
        parameters."""
        return {}

    def rule_factors(self, step: jax.Array) -> Factors:
        """Returns ``[]`` float32 numbers of the rule that depend on the step alone."""
        return ()

    @abc.abstractmethod
    def rule(
        self,
        row: IfTaken,
        states: States,
        gradient: jax.Array,
        mean_square: IfTaken,
        rate: Rate,
        factors: Factors,
        math: RowMath,
    ) -> tuple[jax.Array, States]:
        """Returns the change to subtract from the row, and the new states."""

    @property
    def reads_row(self) -> bool:
        """Whether the row must be given to the methods below."""
        return self.rule_reads_row or self.weight_decay > 0

    def step_factors(self, step: jax.Array) -> tuple[Any, ...]:
        """Returns ``[]`` numbers that depend on the step alone."""
        factors = self.rule_factors(step)
        if self.schedule is None:
            return factors
        return self.schedule(step.astype("float32") - 1), *factors

    def update(
        self,
        row: IfTaken,
        states: States,
        gradient: jax.Array,
        mean_square: IfTaken,
        factors: Factors,
        math: RowMath,
    ) -> tuple[IfTaken, jax.Array, States]:
        """Applies decay and rule to rows.

        Args:
          row: the rows, for optimizers that read them.
          states: their states.
          gradient: their gradients, summed over the batch.
          mean_square: its mean square over whole rows, for row-wise rules.
          factors: what ``step_factors`` returned.
          math: operations for rules.

        Returns:
          What the decay leaves of the rows, the change to subtract from it, and the new
          states.
        """
        rate: Rate = self.learning_rate
        if self.schedule is not None:
            rate, factors = rate * factors[0], factors[1:]
        if self.weight_decay:
            row = row - math.fill(rate * self.weight_decay) * row
        change, states = self.rule(
            row, states, gradient, mean_square, rate, factors, math
        )
        return row, change, states


Eps = Annotated[
    float,
    Gt(0),
    Doc("Number added to the square root that the rule divides by."),
]
InitialAccumulator = Annotated[
    float, Ge(0), Doc("Initial value of the sums of squares.")
]


@dataclasses.dataclass(frozen=True)
class SGD(RowOptimizer):
    """``row -= learning_rate * gradient``."""

    def rule(self, row, states, gradient, mean_square, rate, factors, math):
        return math.fill(rate) * gradient, {}


@dataclasses.dataclass(frozen=True)
class Adagrad(RowOptimizer):
    """``accumulator += gradient²; row -= lr * gradient / (sqrt(accumulator) + eps)``.

    Source: https://jmlr.org/papers/v12/duchi11a.html, with eps where PyTorch and the
    MLPerf reference have it.
    """

    eps: Eps = 1e-8
    initial_accumulator: InitialAccumulator = 0.0

    @property
    def initial_state(self):
        return self.initial_accumulator

    def state_widths(self, width):
        return {"accumulator": width}

    def rule(self, row, states, gradient, mean_square, rate, factors, math):
        accumulator = states["accumulator"] + gradient * gradient
        scaled = gradient / (math.sqrt(accumulator) + self.eps)
        return math.fill(rate) * scaled, {"accumulator": accumulator}


@dataclasses.dataclass(frozen=True)
class RowwiseAdagrad(RowOptimizer):
    """Adagrad with one accumulator per row, for the mean square over the row.

    It equals FBGEMM's EXACT_ROWWISE_ADAGRAD (https://github.com/pytorch/FBGEMM).
    """

    eps: Eps = 1e-8
    initial_accumulator: InitialAccumulator = 0.0
    row_wise = True

    @property
    def initial_state(self):
        return self.initial_accumulator

    def state_widths(self, width):
        return {"accumulator": 1}

    def rule(self, row, states, gradient, mean_square, rate, factors, math):
        accumulator = states["accumulator"] + mean_square
        rate = rate / (math.sqrt(accumulator) + self.eps)
        return math.fill(rate) * gradient, {"accumulator": accumulator}


@dataclasses.dataclass(frozen=True)
class LazyAdam(RowOptimizer):
    """Adam (https://arxiv.org/abs/1412.6980), in which only touched rows' moments
    decay.

    The bias correction counts steps of the run, not touches of the row, like
    TensorFlow Addons' LazyAdam.
    """

    beta1: Annotated[float, Ge(0), Lt(1), Doc("Decay of the mean gradient.")] = 0.9
    beta2: Annotated[
        float, Ge(0), Lt(1), Doc("Decay of the mean squared gradient.")
    ] = 0.999
    eps: Eps = 1e-8

    def state_widths(self, width):
        return {"mean": width, "variance": width}

    def rule_factors(self, step):
        count = step.astype("float32")
        return 1 / (1 - self.beta1**count), 1 / (1 - self.beta2**count)

    def rule(self, row, states, gradient, mean_square, rate, factors, math):
        mean = self.beta1 * states["mean"] + (1 - self.beta1) * gradient
        variance = self.beta2 * states["variance"] + (1 - self.beta2) * (
            gradient * gradient
        )
        mean_hat, variance_hat = (
            moment * math.fill(factor)
            for moment, factor in zip((mean, variance), factors, strict=True)
        )
        scaled = mean_hat / (math.sqrt(variance_hat) + self.eps)
        return math.fill(rate) * scaled, {"mean": mean, "variance": variance}


@dataclasses.dataclass(frozen=True)
class FTRL(RowOptimizer):
    """FTRL-proximal, each parameter for itself, with ``learning_rate`` for α: Algorithm
    1 of https://research.google/pubs/ad-click-prediction-a-view-from-the-trenches/.

    The algorithm begins with rows of zeros. Here they may begin with any values, and
    the rate may change: a parameter that is not 0 says itself what its ``z`` is,
    ``-((beta + sqrt(accumulator)) / α + l2) * parameter - sign(parameter) * l1``, so
    the state ``z`` counts only where the parameter is 0.
    """

    beta: Annotated[
        float, Gt(0), Doc("Number added to the root of the sum of squares.")
    ] = 1.0
    l1: Annotated[
        float, Ge(0), Doc("L1 regularization, which sets parameters to 0.")
    ] = 0.0
    l2: Annotated[float, Ge(0), Doc("L2 regularization.")] = 0.0
    rule_reads_row = True

    def state_widths(self, width):
        return {"accumulator": width, "z": width}

    def rule(self, row, states, gradient, mean_square, rate, factors, math):
        accumulator = states["accumulator"] + gradient * gradient
        # The rule divides by the rate, so 1 stands for a rate of 0, which moves no row.
        moves = rate >= LEAST_RATE
        rate = math.where(moves, rate, 1.0)
        scale = (self.beta + math.sqrt(accumulator)) / math.fill(rate) + self.l2
        threshold = math.where(row > 0, self.l1, -self.l1)
        z = math.where(row == 0, states["z"], -scale * row - threshold) + gradient
        excess = math.where(z > self.l1, z - self.l1, z + self.l1)
        excess = math.where((z > self.l1) | (z < -self.l1), excess, 0.0)
        change = math.fill(math.where(moves, 1.0, 0.0)) * (row + excess / scale)
        return change, {"accumulator": accumulator, "z": z}


ROW_OPTIMIZERS: dict[str, type[RowOptimizer]] = {
    "sgd": SGD,
    "adagrad": Adagrad,
    "rowwise_adagrad": RowwiseAdagrad,
    "adam": LazyAdam,
    "ftrl": FTRL,
}
"""The rules by the names that configs and table lists call them. Config keys, the
planner's memory, help, public names, documentation and tests follow from this."""
STAY_FINITE = SGD, Adagrad, RowwiseAdagrad, LazyAdam, FTRL
"""Rules whose results are finite in float32 where gradients and factors are, and not
too large. Results of other rules are looked at before they are written."""


def parameters(rule: type[RowOptimizer]) -> dict[str, Any]:
    """Returns the annotated types of a rule's own parameters, by name, in order."""
    own = inspect.get_annotations(rule, eval_str=True)
    return {
        field.name: own[field.name]
        for field in dataclasses.fields(rule)
        if field.name in own and field.name != "schedule"
    }


def _check(optimizer: RowOptimizer, name: str, annotation: Any) -> None:
    """Raises ``ValueError`` unless a number is as its annotation says."""
    limits = getattr(annotation, "__metadata__", ())
    if getattr(annotation, "__origin__", annotation) is not float:
        return  # of another type, in a rule of one's own
    value: Any = getattr(optimizer, name)
    kind = type(value)
    is_number = issubclass(kind, numbers.Real) and kind is not bool
    good, rules = is_number and math.isfinite(value), []
    for limit in limits:
        match limit:
            case Ge(ge=bound):
                good, rule = good and value >= bound, f">= {bound}"
            case Gt(gt=bound):
                good, rule = good and value > bound, f"> {bound}"
            case Lt(lt=bound):
                good, rule = good and value < bound, f"< {bound}"
            case _:
                continue
        rules.append(rule)
    if not good:
        raise ValueError(
            f"{type(optimizer).__name__}: {name} is {value!r}, must be a finite number "
            f"{' and '.join(rules)}".rstrip()
        )
