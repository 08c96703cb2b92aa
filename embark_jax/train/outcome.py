"""What became of a step: the report that it leaves on the devices, the result that the
host makes of it, and the errors that name the batch.

A few numbers of the report travel, as one small array: the host asks for them when it
starts the step, and has them by the time it looks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, NamedTuple, NoReturn, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from embark_jax._base.errors import UserError
from embark_jax.data import Batch, BatchChecker, DataError, feature_statistics
from embark_jax.embedding.collection import Routes

Refused = Literal["bad ids", "overflow", "not finite"]
"""Why a step changed nothing: an id is no row of its table, the batch needs more
capacity than there was, or its loss or an update is not finite."""
REFUSED: tuple[Refused | None, ...] = (None, *get_args(Refused))
"""What the first of a report's numbers means."""


class StepReport(NamedTuple):
    """The results of a step besides the new state, on the devices.

    Attributes:
      numbers: ``[2 + capacities]`` int32, made by ``join_numbers``.
      bad_ids: ``[devices, features]`` number of ids that are no row of their table, as
        in ``Routes``.
      logits: ``[batch]`` or ``[batch, tasks]`` logits before the update, sharded.
      labels: labels, shaped like the logits, sharded.
      weights: ``[batch]`` weights of the samples, sharded, if they have some.
    """

    numbers: jax.Array
    bad_ids: jax.Array
    logits: jax.Array
    labels: jax.Array
    weights: jax.Array | None = None

    def result(
        self, capacities: Mapping[str, int], step: int = 0, hot: bool = False
    ) -> StepResult:
        """Waits for the step, and returns its result.

        Args:
          capacities: capacities that the step was compiled for.
          step, hot: as in ``StepResult``.
        """
        joined = np.asarray(self.numbers)
        refused, _, *counts = joined.tolist()
        needed = dict(zip(capacities, counts, strict=True))
        return StepResult(
            step,
            float(joined[1:2].view(np.float32)[0]),
            self.logits,
            self.labels,
            {name: count / max(capacities[name], 1) for name, count in needed.items()},
            hot,
            self.weights,
            REFUSED[refused],
            needed,
        )


def join_numbers(
    routes: Routes,
    needed: Mapping[str, jax.Array],
    fits: jax.Array,
    finite: jax.Array,
    loss: jax.Array,
) -> jax.Array:
    """Joins the numbers of a step into one array, which the host asks for once.

    Args:
      routes: routes of the batch.
      needed, fits: what the collection says of them.
      finite: ``[]`` bool: whether loss and update are finite and may be applied.
      loss: ``[]`` float32 mean loss of the batch.
    """
    reasons = jnp.stack([routes.any_bad, ~fits, ~finite])
    refused = jnp.where(reasons.any(), 1 + jnp.argmax(reasons), 0)
    numbers = [
        refused.astype(jnp.int32),
        lax.bitcast_convert_type(loss.astype(jnp.float32), jnp.int32),
        *(count.astype(jnp.int32) for count in needed.values()),
    ]
    return jnp.stack(numbers)


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The result of a step.

    Attributes:
      step: number of the step, from 1.
      loss: mean log loss of its batch, before the update.
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
    logits: jax.Array
    labels: jax.Array
    used: Mapping[str, float]
    hot: bool = False
    weights: jax.Array | None = None
    refused: Refused | None = None
    needed: Mapping[str, int] = dataclasses.field(default_factory=dict)


class NonFiniteLossError(UserError, ArithmeticError):
    """The loss of a batch or its update is NaN or infinite; the state is the one before
    this batch."""


class BadIdError(DataError):
    """Ids that are no row of their table reached the devices; the state is the one
    before their batch."""


def refuse_non_finite(batch: Batch, result: StepResult) -> NoReturn:
    """Raises ``NonFiniteLossError`` for the step of a batch."""
    raise NonFiniteLossError(
        f"loss is {result.loss:.6g} at step {result.step}, and it or the update not "
        "finite; the batch:\n  " + "\n  ".join(feature_statistics(batch))
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
