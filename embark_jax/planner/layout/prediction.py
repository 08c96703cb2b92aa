"""What the planner expects of a plan."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Breakdown:
    """What the time of a step is made of, and what travels in it.

    In an exchange, every device sends as much to one owner as any other does, and an
    owner as much back to each; so vectors say all that a matrix of pairs would.

    Attributes:
      critical_ms: for each phase of the step, in its order, how long it lasts: until
        its fullest device is done.
      phase_ms: for each phase ``[devices]`` how long each device is busy in it.
      table_ms: for each table, the part of the step that it is for: in each phase its
        part of the fullest device's load.
      hottest_row_shard: for each table, ids of its hottest row shard, as a multiple of
        the mean.
      device_ids: ``[devices]`` ids a sample that each is expected to be sent.
      to_owner_bytes, from_owner_bytes: ``[devices]`` that each device sends a device
        for the shards it owns, and gets back, without any padding.
      padded_bytes: that each device really sends each other. Of a hierarchical
        exchange these are the bytes of its first stage, inside the node.
      reduced_bytes: that each device sends for sums over all devices.
    """

    critical_ms: Mapping[str, float]
    phase_ms: Mapping[str, tuple[float, ...]]
    table_ms: Mapping[str, float]
    hottest_row_shard: Mapping[str, float]
    device_ids: tuple[float, ...]
    to_owner_bytes: tuple[float, ...]
    from_owner_bytes: tuple[float, ...]
    padded_bytes: float
    reduced_bytes: float


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A plan's cost by a cost model.

    Attributes:
      cost_model: its name.
      step_ms: time that the embeddings take of a step.
      lower_bound_ms: no plan takes less by this cost model; zero where that was not
        asked.
      device_ms, device_bytes: of each device, how long it is busy, and the memory that
        is allocated on it.
      breakdown: of the time, if the cost model is the program's.
    """

    cost_model: str
    step_ms: float
    lower_bound_ms: float
    device_ms: tuple[float, ...]
    device_bytes: tuple[float, ...]
    breakdown: Breakdown | None = None

    @property
    def gap(self) -> float:
        """How far above the optimum the plan is at most, as a share of it."""
        if not self.step_ms:
            return 0.0
        if not self.lower_bound_ms:
            return math.inf
        return self.step_ms / self.lower_bound_ms - 1
