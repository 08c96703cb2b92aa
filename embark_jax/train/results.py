"""The outcome of a training step: a result, or an error that names its batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NoReturn

import jax
import numpy as np

from embark_jax.data import Batch, BatchChecker, DataError, feature_statistics
from embark_jax.errors import UserError


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
    """

    step: int
    loss: float
    logits: jax.Array
    labels: jax.Array
    used: Mapping[str, float]


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
