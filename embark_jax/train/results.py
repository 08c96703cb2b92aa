"""The result of a step, read from what it left on the devices; and its errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NoReturn

import jax
import numpy as np

from embark_jax._base.errors import UserError
from embark_jax.data import Batch, BatchChecker, DataError, feature_statistics
from embark_jax.train.step import REFUSED, Refused, StepReport


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The result of a step.

    Attributes:
      step: number of the step, from 1.
      loss: mean loss of its batch, before the update.
      logits, labels: ``[batch]`` or ``[batch, tasks]``, sharded by samples; logits
        before the update.
      used: share of each of the plan's capacities that the batch needed.
      hot: whether all ids of the batch were of hot rows, so that it took the step that
        exchanges no embeddings.
      weights: ``[batch]`` weights of the samples, sharded, if they have some.
      refused: why it changed nothing; None if it was applied, as all have been that a
        trainer yields.
      needed: what the batch needed of each of these capacities.
    """

    step: int
    loss: float
    logits: jax.Array = dataclasses.field(repr=False)
    labels: jax.Array = dataclasses.field(repr=False)
    used: Mapping[str, float] = dataclasses.field(repr=False)
    hot: bool = False
    weights: jax.Array | None = dataclasses.field(default=None, repr=False)
    refused: Refused | None = None
    needed: Mapping[str, int] = dataclasses.field(default_factory=dict, repr=False)


class NonFiniteLossError(UserError, ArithmeticError):
    """The loss of a batch or its update is NaN or infinite; the state is the one before
    this batch."""


class BadIdError(DataError):
    """Ids out of range for their table reached the devices; the state is the one before
    their batch."""


def result_of(
    report: StepReport, capacities: Mapping[str, int], step: int = 0, hot: bool = False
) -> StepResult:
    """Waits for a step, and returns its result.

    Args:
      report: what it left on the devices.
      capacities: capacities that it was compiled for.
      step, hot: as in ``StepResult``.
    """
    numbers = np.asarray(report.numbers)
    refused, _, *counts = numbers.tolist()
    needed = dict(zip(capacities, counts, strict=True))
    return StepResult(
        step,
        float(numbers[1:2].view(np.float32)[0]),
        report.logits,
        report.labels,
        {name: count / max(capacities[name], 1) for name, count in needed.items()},
        hot,
        report.weights,
        REFUSED[refused],
        needed,
    )


def raise_non_finite(batch: Batch, result: StepResult) -> NoReturn:
    """Raises ``NonFiniteLossError`` for the step of a batch."""
    raise NonFiniteLossError(
        f"loss is {result.loss:.6g} at step {result.step}, and it, a rate or the "
        "update not finite; the batch:\n  " + "\n  ".join(feature_statistics(batch))
    )


def raise_bad_ids(batch: Batch, bad_ids: jax.Array, check: BatchChecker) -> NoReturn:
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
