"""What the planner expects of a plan."""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A plan's cost by a cost model.

    Attributes:
      cost_model: its name.
      step_ms: time that the slowest device takes for the embeddings in a step.
      lower_bound_ms: no plan takes less by this cost model; zero where that was not
        asked.
      device_ms, device_bytes: time and allocated memory of each device.
    """

    cost_model: str
    step_ms: float
    lower_bound_ms: float
    device_ms: tuple[float, ...]
    device_bytes: tuple[float, ...]

    @property
    def gap(self) -> float:
        """How far above the optimum the plan is at most, as a share of it."""
        if not self.step_ms:
            return 0.0
        if not self.lower_bound_ms:
            return math.inf
        return self.step_ms / self.lower_bound_ms - 1
