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
      phase_ms: for each phase of the step, in its order, ``[devices]`` time of it.
      table_ms: for each table, its part of the slowest device's time. Exchanges that
        tables share are divided by their ids and pooled rows.
      to_owner_bytes, from_owner_bytes: ``[devices]`` that each device sends a device
        for the shards it owns, and gets back, without any padding.
      padded_bytes: that each device really sends each other. Of a hierarchical
        exchange these are the bytes of its first stage, inside the node.
      reduced_bytes: that each device sends for sums over all devices.
    """

    phase_ms: Mapping[str, tuple[float, ...]]
    table_ms: Mapping[str, float]
    to_owner_bytes: tuple[float, ...]
    from_owner_bytes: tuple[float, ...]
    padded_bytes: float
    reduced_bytes: float


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A plan's cost by a cost model.

    Attributes:
      cost_model: its name.
      step_ms: time that the slowest device takes for the embeddings in a step.
      lower_bound_ms: no plan takes less by this cost model; zero where that was not
        asked.
      device_ms, device_bytes: time and allocated memory of each device.
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
