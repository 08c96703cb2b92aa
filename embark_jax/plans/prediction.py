"""Predictions: the cost that the planner expects of a plan."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated

from embark_kernels.optimizers import ROW_OPTIMIZERS
from pydantic import Field

from embark_jax.plans.options import Kernels

Amount = Annotated[float, Field(ge=-1e-6, le=1e40)]
"""A number of a prediction; below 0 by a rounding error at most."""
HARDLY_LONGER = 0.01
"""Share by which a step may be longer where less memory is advised."""


@dataclasses.dataclass(frozen=True)
class Breakdown:
    """The parts of a step's time, and the bytes that travel in it.

    Attributes:
      critical_ms: for each phase of the step, in its order, how long it lasts: until
        its fullest device is done.
      phase_ms: for each phase ``[devices]`` busy time of each device.
      table_ms: for each table, the part of the step that it causes: in each phase its
        part of the fullest device's load.
      hottest_row_shard: for each table, ids of its hottest row shard, as a multiple of
        the mean.
      device_ids: ``[devices]`` ids a sample that each device is expected to receive.
      padded_bytes: bytes that each device sends to each other, padding included. In a
        hierarchical exchange these are the bytes of its first stage, inside the node.
      reduced_bytes: bytes that each device sends for sums over all devices.
      hidden_ms: time of collectives and row stores that is not in the step, since it
        passes beside the dense layers, or beside the step before.
      hit_rates: for each cached table, the share of the cold rows that a batch asks for
        that are in slots when it comes.
    """

    critical_ms: Mapping[str, Amount]
    phase_ms: Mapping[str, tuple[Amount, ...]]
    table_ms: Mapping[str, Amount]
    hottest_row_shard: Mapping[str, Amount]
    device_ids: tuple[Amount, ...]
    padded_bytes: Amount
    reduced_bytes: Amount
    hidden_ms: Amount = 0.0
    hit_rates: Mapping[str, Amount] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class MemoryUse:
    """Memory of a device that a plan takes, and its step."""

    device_bytes: Amount
    step_ms: Amount


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A plan's cost: what the compiled step moves, padding included.

    Attributes:
      step_ms: time of the embeddings in a step.
      lower_bound_ms: bound of the step's time; zero if it was not computed.
      device_ms, device_bytes: busy time of each device, and the memory that is
        allocated on it.
      stored_bytes: host memory and disk space for rows and keys of cached tables, by
        tier, of the node that needs most.
      breakdown: parts of the time.
      placeholders: whether the figures of the fleet are placeholders, which weigh terms
        against each other and predict nothing.
      kernels: implementation of lookups and updates that is priced.
      optimizer: optimizer of rows whose state is counted; of several, that with the
        most.
      overlap: whether the routes of the next batch hide beside the dense layers.
      advice: what the planner chose or tried beside, in sentences.
      by_memory: plans that need less memory the longer they take, this one first.
    """

    step_ms: Amount
    lower_bound_ms: Amount
    device_ms: tuple[Amount, ...]
    device_bytes: tuple[Amount, ...]
    stored_bytes: Mapping[str, Amount] = dataclasses.field(default_factory=dict)
    breakdown: Breakdown = dataclasses.field(kw_only=True)
    placeholders: bool = False
    kernels: Kernels = dataclasses.field(kw_only=True)
    optimizer: str = dataclasses.field(kw_only=True)
    overlap: bool = False
    advice: tuple[str, ...] = ()
    by_memory: tuple[MemoryUse, ...] = ()

    def problems(self, tables: Sequence[str], devices: int) -> list[str]:
        """Lists what is wrong with this prediction for a plan of these tables."""
        breakdown = self.breakdown
        per_device = {
            "device_ms": self.device_ms,
            "device_bytes": self.device_bytes,
            "device_ids": breakdown.device_ids,
        } | {f"phase_ms.{name}": ms for name, ms in breakdown.phase_ms.items()}
        per_table = {
            "table_ms": breakdown.table_ms,
            "hottest_row_shard": breakdown.hottest_row_shard,
        }
        problems = []
        if self.optimizer not in ROW_OPTIMIZERS:
            problems.append(
                f"prediction: optimizer is {self.optimizer!r}, must be one of "
                f"{', '.join(ROW_OPTIMIZERS)}"
            )
        problems += [
            f"prediction: {key} has {len(numbers)} values, must have one for each of "
            f"the {devices} devices"
            for key, numbers in per_device.items()
            if len(numbers) != devices
        ]
        return problems + [
            f"prediction: {key} must have a value for each table, and for nothing else"
            for key, numbers in per_table.items()
            if set(numbers) != set(tables)
        ]

    @property
    def gap(self) -> float:
        """Largest distance of the plan from the optimum, as a share of the optimum."""
        if not self.step_ms:
            return 0.0
        if not self.lower_bound_ms:
            return math.inf
        return self.step_ms / self.lower_bound_ms - 1
