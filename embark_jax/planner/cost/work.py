"""Work: what a part of the step asks of a device, before any hardware is named."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from embark_jax.planner.cost.collectives import CollectiveKind, Reach

Unit = Literal["storage", "sum", "node_sum", "id"]
"""What work of a storage is counted by: once if any table lies in it; for each partial
sum a sample that the fullest device, or node, makes; for each id of its capacity."""


@dataclasses.dataclass(frozen=True)
class Work:
    """One kind of work of a phase of the step.

    Attributes:
      phase: of the step.
      what: is moved.
      memory_bytes: read and written in device memory; ``[shapes]`` or ``[row shards]``
        where it is of several.
      collective: that carries it, if it travels.
      reach: between which devices.
      buffer_bytes: of that collective, on one device.
      latency_ms: of that collective, whatever its size.
    """

    phase: str
    what: str
    memory_bytes: float | np.ndarray = 0.0
    collective: CollectiveKind | None = None
    reach: Reach = "fleet"
    buffer_bytes: float = 0.0
    latency_ms: float = 0.0
