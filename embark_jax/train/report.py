"""A step's report to the loop: large arrays that stay, a few numbers that travel.

The numbers are one small array, so that the host asks for them once a step, when it
dispatches the step, and has them by the time it looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from embark_jax.data import Batch


class StepReport(NamedTuple):
    """The results of a step besides the new state.

    Attributes:
      numbers: ``[3 + storages]`` int32, made by ``join_numbers``.
      bad_ids: ``[devices, features]`` number of ids that are no row of their table, as
        in ``Routes``; several micro-batches lie along a first axis.
      logits: ``[batch]`` logits before the update, sharded.
      labels: labels, shaped like the logits, sharded.
    """

    numbers: jax.Array
    bad_ids: jax.Array
    logits: jax.Array
    labels: jax.Array


class Numbers(NamedTuple):
    """The numbers of a step, on the host.

    Attributes:
      applied: whether the step changed the state.
      any_bad: whether an id is no row of its table.
      loss: mean log loss of the batch, before the update.
      needed: for each sharded storage the capacity that the batch needs.
    """

    applied: bool
    any_bad: bool
    loss: float
    needed: dict[str, int]

    @classmethod
    def of(cls, joined: jax.Array, capacities: Mapping[str, int]) -> Numbers:
        """Inverts ``join_numbers``, for these storages; waits for the step."""
        applied, any_bad, _, *needed = words = np.asarray(joined).tolist()
        loss = float(np.array(words[2], np.int32).view(np.float32))
        by_name = dict(zip(capacities, needed, strict=True))
        return cls(bool(applied), bool(any_bad), loss, by_name)

    def overflow(self, capacities: Mapping[str, int]) -> bool:
        """Returns whether the batch needs more than there is."""
        return any(self.needed[name] > have for name, have in capacities.items())


class Flight(NamedTuple):
    """A step that was dispatched, and the capacities it was compiled for."""

    batch: Batch
    report: StepReport
    capacities: Mapping[str, int]

    @classmethod
    def of(
        cls, batch: Batch, report: StepReport, capacities: Mapping[str, int]
    ) -> Flight:
        """Returns the flight and asks for its numbers, too; waits for nothing."""
        report.numbers.copy_to_host_async()
        return cls(batch, report, capacities)

    def numbers(self) -> Numbers:
        """Waits for the step, and returns its numbers."""
        return Numbers.of(self.report.numbers, self.capacities)


def join_numbers(
    applied: jax.Array,
    any_bad: jax.Array,
    loss: jax.Array,
    needed: Mapping[str, jax.Array],
    capacities: Mapping[str, int],
) -> jax.Array:
    """Joins the numbers of a step into one array, in the order of ``capacities``."""
    numbers = [
        applied.astype(jnp.int32),
        any_bad.astype(jnp.int32),
        lax.bitcast_convert_type(loss.astype(jnp.float32), jnp.int32),
        *(needed[name].astype(jnp.int32) for name in capacities),
    ]
    return jnp.stack(numbers)
