"""The outcome of a training step: a result, or an error that names its batch."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import NoReturn

import jax
import numpy as np

from embark_jax._base.errors import UserError
from embark_jax.data import Batch, BatchChecker, DataError, feature_statistics
from embark_jax.train.report import Flight, Numbers


class NonFiniteLossError(UserError, ArithmeticError):
    """The loss of a batch or its update is NaN or infinite; the state is the one before
    this batch."""


class BadIdError(DataError):
    """Ids that are no row of their table reached the devices; the state is the one
    before their batch."""


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
    """

    step: int
    loss: float
    logits: jax.Array
    labels: jax.Array
    used: Mapping[str, float]
    hot: bool = False

    @classmethod
    def of(cls, step: int, flight: Flight, numbers: Numbers) -> StepResult:
        """Returns the result of a step that has landed with these numbers."""
        batch, report, capacities = flight
        used = {n: numbers.needed[n] / max(c, 1) for n, c in capacities.items()}
        return cls(step, numbers.loss, report.logits, report.labels, used, batch.hot)


def warn_if_done(step: int, steps: int) -> None:
    """Warns the caller's caller that nothing is left to train up to step ``steps``."""
    if step >= steps:
        warnings.warn(
            f"nothing to train: step {step:,} is reached, and steps={steps:,} is the "
            f"number of the last step, not of further ones; {step:,} + N trains N more",
            stacklevel=3,
        )


def refuse_beyond_help(
    flight: Flight, numbers: Numbers, check: BatchChecker, step: int
) -> None:
    """Raises why a step was refused, unless it only needs larger capacities.

    Args:
      flight: flight of the step.
      numbers: its numbers.
      check: checker that knows the features and their tables.
      step: number of the step.

    Raises:
      BadIdError: if ids are no rows of their tables.
      NonFiniteLossError: if loss or update are not finite.
    """
    if numbers.any_bad:
        refuse_bad_ids(flight.batch, flight.report.bad_ids, check)
    if not numbers.overflow(flight.capacities):
        refuse_non_finite(flight.batch, numbers.loss, step)


def refuse_non_finite(batch: Batch, loss: float, step: int) -> NoReturn:
    """Raises for a step whose loss or update is not finite."""
    raise NonFiniteLossError(
        f"loss is {loss:.6g} at step {step}, and it or the update not finite; the "
        "batch:\n  " + "\n  ".join(feature_statistics(batch))
    )


def refuse_bad_ids(batch: Batch, bad_ids: jax.Array, check: BatchChecker) -> NoReturn:
    """Raises for ids that reached the devices in spite of a checker.

    Args:
      batch: this process's part of the batch.
      bad_ids: ``[…, features]`` number of bad ids of each feature, by devices.
      check: checker that knows the features and their tables.
    """
    shards = [np.asarray(shard.data) for shard in bad_ids.addressable_shards]
    counts = [shard.reshape(-1, shard.shape[-1]).sum(axis=0) for shard in shards]
    found = check.describe_bad_ids(batch, np.sum(counts, axis=0))
    where = "\n  ".join(found) or "in the part of another process"
    raise BadIdError(f"ids out of range, nothing of the batch is used:\n  {where}")
