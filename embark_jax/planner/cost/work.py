"""Work: what a phase of the step moves, and the peaks that say how long it lasts."""

from __future__ import annotations

import dataclasses
import enum
from typing import Literal

import numpy as np

from embark_jax.plans.clusters import Reach


class Peak(enum.IntEnum):
    """Peaks of a storage: partial sums, capacity, ms of lookup, gradients and update,
    rows, room for updated rows, and ms of row stores of the fullest device; partial
    sums of the fullest node; and 1 if any table lies in it. Those of update and row
    stores have no price, as they are of all storages together; of rows and of room for
    them only memory has one."""

    SUMS = 0
    IDS = 1
    LOOKUP = 2
    GRADIENTS = 3
    UPDATE = 4
    ROWS = 5
    UPDATED = 6
    STORE = 7
    NODE = 8
    USE = 9


EXCHANGED: tuple[Peak, ...] = Peak.USE, Peak.SUMS, Peak.NODE, Peak.IDS
"""Those that size a storage's exchanges."""
STORE = "row store"
"""The phase in which rows of cached tables come into slots from host memory or a disk,
and others leave. Look-ahead hides it behind the rest of the step before."""
OWNER_PHASES = "lookup", "gradients", "update", STORE
"""Phases in which owners work on their own shards. Lookup and gradients of a storage
lie between its exchanges; the update of all follows the last exchange of a step."""
PHASES = (
    "sort",
    "id exchange",
    "lookup",
    "row exchange",
    "gradients",
    "gradient exchange",
    "square exchange",
    "update",
    STORE,
)
"""Names of the phases, in the order of the step."""


@dataclasses.dataclass(frozen=True, eq=False)
class Work:
    """One kind of work of a phase of the step.

    Attributes:
      phase: phase of the step.
      what: name of what is moved.
      memory_bytes: bytes read and written in device memory; ``[candidates]`` or ``[row
        shards]`` if it is the work of several.
      collective: collective that carries it; None if it does not travel.
      reach: devices that take part in the collective.
      buffer_bytes: size of its buffer on one device.
      latency_ms: latency of the collective, whatever its size.
      host_bytes, disk_bytes: bytes that move between device and host memory, and that
        are read and written on disks, like those in device memory.
      kernels: number of kernels that are launched, if they are small.
    """

    phase: str
    what: str
    memory_bytes: float | np.ndarray = 0.0
    collective: Literal["all_to_all", "all_reduce"] | None = None
    reach: Reach = "fleet"
    buffer_bytes: float | np.ndarray = 0.0
    latency_ms: float = 0.0
    host_bytes: float | np.ndarray = 0.0
    disk_bytes: float | np.ndarray = 0.0
    kernels: float | np.ndarray = 0.0

    def only(self, some: np.ndarray) -> Work:
        """Returns the same for ``[candidates]`` some of them, and nothing for the
        others."""
        return dataclasses.replace(
            self,
            memory_bytes=self.memory_bytes * some,
            buffer_bytes=self.buffer_bytes * some,
        )

    def in_buffer(self, buffer_bytes: float | np.ndarray) -> Work:
        """Returns the same for a buffer of this size, which is written and sent,
        received and read."""
        return dataclasses.replace(
            self, memory_bytes=4 * buffer_bytes, buffer_bytes=buffer_bytes
        )
