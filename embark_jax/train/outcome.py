"""What became of a step: arrays that stay on the devices, a few numbers that travel,
and the result, or the error that names the batch.

The numbers are one small array, so that the host asks for them once a step, when it
starts the step, and has them by the time it looks.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from embark_jax._base.errors import UserError
from embark_jax.data import Batch, BatchChecker, DataError, feature_statistics


class StepReport(NamedTuple):
    """The results of a step besides the new state.

    Attributes:
      numbers: ``[4 + storages]`` int32, made by ``join_numbers``.
      bad_ids: ``[devices, features]`` number of ids that are no row of their table, as
        in ``Routes``.
      logits: ``[batch]`` logits before the update, sharded.
      labels: labels, shaped like the logits, sharded.
      weights: ``[batch]`` weights of the samples, sharded, if they have some.
    """

    numbers: jax.Array
    bad_ids: jax.Array
    logits: jax.Array
    labels: jax.Array
    weights: jax.Array | None = None


class Outcome(NamedTuple):
    """The numbers of a step, on the host.

    Attributes:
      applied: whether the step changed the state; of a scored batch, whether its logits
        are good.
      any_bad: whether an id is no row of its table.
      overflow: whether the batch needs more capacity than there was.
      loss: mean log loss of the batch, before the update.
      needed: for each sharded storage the capacity that the batch needs.
    """

    applied: bool
    any_bad: bool
    overflow: bool
    loss: float
    needed: dict[str, int]

    @classmethod
    def of(cls, report: StepReport, capacities: Mapping[str, int]) -> Outcome:
        """Inverts ``join_numbers``, for the storages of these capacities; waits for the
        step."""
        joined = np.asarray(report.numbers)
        applied, any_bad, overflow, _, *needed = joined.tolist()
        loss = float(joined[3:4].view(np.float32)[0])
        by_name = dict(zip(capacities, needed, strict=True))
        return cls(bool(applied), bool(any_bad), bool(overflow), loss, by_name)


def join_numbers(
    applied: jax.Array,
    any_bad: jax.Array,
    overflow: jax.Array,
    loss: jax.Array,
    needed: Mapping[str, jax.Array],
) -> jax.Array:
    """Joins the numbers of a step into one array; see ``Outcome``."""
    numbers = [
        applied.astype(jnp.int32),
        any_bad.astype(jnp.int32),
        overflow.astype(jnp.int32),
        lax.bitcast_convert_type(loss.astype(jnp.float32), jnp.int32),
        *(capacity.astype(jnp.int32) for capacity in needed.values()),
    ]
    return jnp.stack(numbers)


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The result of a step that was applied.

    Attributes:
      step: number of the step, from 1.
      loss: mean log loss of its batch, before the update.
      logits, labels: ``[batch]`` or ``[batch, tasks]``, sharded by samples; logits
        before the update.
      used: for each sharded storage the share of its capacity that the batch needed.
      hot: whether all ids of the batch were of hot rows, so that it took the step that
        exchanges no embeddings.
      weights: ``[batch]`` weights of the samples, sharded, if they have some.
    """

    step: int
    loss: float
    logits: jax.Array
    labels: jax.Array
    used: Mapping[str, float]
    hot: bool = False
    weights: jax.Array | None = None


class NonFiniteLossError(UserError, ArithmeticError):
    """The loss of a batch or its update is NaN or infinite; the state is the one before
    this batch."""


class BadIdError(DataError):
    """Ids that are no row of their table reached the devices; the state is the one
    before their batch."""


def warn_if_done(step: int, steps: int) -> None:
    """Warns the caller's caller that nothing is left to train up to step ``steps``."""
    if step >= steps:
        warnings.warn(
            f"nothing to train: step {step:,} is reached, and steps={steps:,} is the "
            f"number of the last step, not of further ones; {step:,} + N trains N more",
            stacklevel=3,
        )


def refuse_non_finite(batch: Batch, loss: float, step: int) -> NoReturn:
    """Raises ``NonFiniteLossError`` for step ``step``."""
    raise NonFiniteLossError(
        f"loss is {loss:.6g} at step {step}, and it or the update not finite; the "
        "batch:\n  " + "\n  ".join(feature_statistics(batch))
    )


def refuse_bad_ids(batch: Batch, bad_ids: jax.Array, check: BatchChecker) -> NoReturn:
    """Raises ``BadIdError`` for ids that reached the devices in spite of a checker.

    Args:
      batch: this process's samples of the batch.
      bad_ids: ``[…, features]`` number of bad ids of each feature, by devices.
      check: checker that knows the features and their tables.
    """
    shards = [np.asarray(shard.data) for shard in bad_ids.addressable_shards]
    counts = [shard.reshape(-1, shard.shape[-1]).sum(axis=0) for shard in shards]
    problems = check.describe_bad_ids(batch, np.sum(counts, axis=0))
    where = "\n  ".join(problems) or "in the samples of another process"
    raise BadIdError(f"ids out of range, nothing of the batch is used:\n  {where}")
