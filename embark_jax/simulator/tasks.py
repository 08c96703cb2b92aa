"""Makes tasks from bytes and times."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from embark_jax.planner.cost.dense import dense_parts
from embark_jax.planner.cost.rates import Rates
from embark_jax.planner.request.dense import DenseLoad
from embark_jax.simulator.timeline import LINKS, Resource, Task

MEMORY: frozenset[Resource] = frozenset({"memory"})
TENSOR_CORES: frozenset[Resource] = frozenset({"tensor cores"})
NODE_LINK: frozenset[Resource] = frozenset({"node link"})
NETWORK: frozenset[Resource] = frozenset({"network"})
HOST_LINK: frozenset[Resource] = frozenset({"host link"})
Amount = float | np.ndarray
"""An amount that is the same on every device, or one for each, ``[devices]``."""


@dataclasses.dataclass(frozen=True)
class Tasks:
    """Makes the tasks of a step on one fleet. A task without work takes no time and
    keeps no device waiting.

    Attributes:
      rates: what the fleet achieves.
    """

    rates: Rates

    @property
    def links(self) -> frozenset[Resource]:
        """The links between all devices."""
        return LINKS if self.rates.fleet.nodes > 1 else NODE_LINK

    def task(
        self,
        name: str,
        phase: str,
        resources: Iterable[Resource],
        ms: Amount,
        after: Iterable[str] = (),
        group: int = 1,
    ) -> Task:
        """Makes a task that lasts ``ms``; see ``Task`` for the other arguments."""
        ms = np.broadcast_to(np.asarray(ms, float), self.rates.fleet.devices)
        if not ms.any():
            resources, group = (), 1
        return Task(name, phase, frozenset(resources), ms, tuple(after), group)

    def memory(
        self,
        name: str,
        phase: str,
        moved_bytes: Amount,
        after: Iterable[str] = (),
        kernels: int = 1,
        *,
        ids: bool = False,
    ) -> Task:
        """Kernels that read and write ``moved_bytes`` in all, of rows or of ids."""
        kernels = kernels if np.any(moved_bytes) else 0
        share = self.rates.fleet.efficiency.ids if ids else None
        ms = self.rates.memory_ms(moved_bytes, kernels, share)
        return self.task(name, phase, MEMORY, ms, after)

    def over_all(self, name: str, phase: str, ms: Amount, after: Iterable[str]) -> Task:
        """A collective of all devices."""
        devices = self.rates.fleet.devices
        return self.task(name, phase, self.links, ms, after, devices)

    def all_reduce(
        self, name: str, phase: str, buffer_bytes: float, after: Iterable[str]
    ) -> Task:
        """A sum over all devices."""
        return self.over_all(name, phase, self.rates.all_reduce_ms(buffer_bytes), after)

    def dense(
        self,
        load: DenseLoad,
        device_batch: int,
        bottom_after: Iterable[str],
        top_after: Iterable[str],
        resources: frozenset[Resource] = TENSOR_CORES,
    ) -> list[Task]:
        """The forward and backward of the dense layers, whose parts have their names.

        Args:
          load: the layers.
          device_batch: samples on a device.
          bottom_after: what the bottom MLP waits for.
          top_after: what else the cross layers and the top MLP wait for.
          resources: resources that a dense layer occupies.
        """
        tasks: list[Task] = []
        gpus = self.rates.fleet.gpus_per_node
        waits: Sequence[str] = tuple(bottom_after)
        for part in dense_parts(load, device_batch, self.rates):
            if part.name == "top forward":
                waits = *waits, *top_after
            if part.sums_ms:
                products = f"{part.name}: products"
                tasks.append(self.task(products, "dense", resources, part.ms, waits))
                made = self.task(
                    part.name, "dense sums", NODE_LINK, part.sums_ms, [products], gpus
                )
            else:
                made = self.task(part.name, "dense", resources, part.ms, waits)
            tasks.append(made)
            waits = (part.name,)
        return tasks
