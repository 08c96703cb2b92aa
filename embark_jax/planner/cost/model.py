"""Cost models: the cost of a step's work, in milliseconds.

A cost model is anything with the attributes of ``CostModel``. It prices

- each storage (``StoragePrice``): a fixed part, and a price for a unit of each peak;
- each shard, for the device that owns it (``owner_ms``), in four phases;
- the work of every device for a table, wherever its shards are (``everywhere_ms``).

``objective.py`` makes the time of a step from these prices.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np

from embark_jax.planner.cost.shapes import Shapes
from embark_jax.plans.options import Cluster
from embark_jax.plans.storage import StorageKind

STORE = "row store"
"""The phase in which rows of cached tables come into slots from host memory or a disk,
and others leave. Look-ahead hides it behind the rest of the step before."""
OWNER_PHASES = "lookup", "gradients", "update", STORE
"""Phases in which owners work on their own shards. Lookup and gradients of a storage
lie between its exchanges; the update of all follows the last exchange of a step."""


@dataclasses.dataclass(frozen=True)
class StoragePrice:
    """The cost of one storage to a step.

    Attributes:
      fixed_ms: time if any table lies in it.
      sum_ms: time for each partial sum a sample of the device that makes the most.
      node_sum_ms: time for each partial sum a sample of the node that makes the most,
        added up over its devices.
      id_ms: time for each id that a device can send to another: the capacity.
    """

    fixed_ms: float = 0.0
    sum_ms: float = 0.0
    node_sum_ms: float = 0.0
    id_ms: float = 0.0


class CostModel(Protocol):
    """The costs that objective and search need to know; none may be negative."""

    @property
    def name(self) -> str: ...

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        """Clusters that it can price."""
        ...

    def storage_price(self, storage: StorageKind) -> StoragePrice: ...

    def owner_ms(self, shapes: Shapes) -> np.ndarray:
        """Returns ``[4, row shards]`` time in ``OWNER_PHASES`` of the owner of one
        column shard of each row shard."""
        ...

    def everywhere_ms(self, shapes: Shapes) -> np.ndarray:
        """Returns ``[shapes]`` time of every device alike."""
        ...
