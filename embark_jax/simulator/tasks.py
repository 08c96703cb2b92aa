"""Makes tasks from bytes and operations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from embark_jax.planner.cost.rates import Rates
from embark_jax.planner.request.dense import (
    DenseNetwork,
    DeviceProduct,
    device_products,
)
from embark_jax.plans import traffic
from embark_jax.plans.options import Dtype
from embark_jax.plans.wire import VALUE_BYTES
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
    ) -> Task:
        """Kernels that read and write ``moved_bytes`` in all."""
        kernels = kernels if np.any(moved_bytes) else 0
        ms = self.rates.memory_ms(moved_bytes, kernels)
        return self.task(name, phase, MEMORY, ms, after)

    def all_reduce(
        self, name: str, phase: str, buffer_bytes: float, after: Iterable[str]
    ) -> Task:
        """Makes the task of a sum over all devices."""
        ms = self.rates.all_reduce_ms(buffer_bytes)
        return self.task(name, phase, self.links, ms, after, self.rates.fleet.devices)

    def all_gather(
        self, name: str, phase: str, buffer_bytes: float, after: Iterable[str]
    ) -> Task:
        """Sends the parts of all devices to all. A reduce-scatter takes as long."""
        ms = self.rates.all_gather_ms(buffer_bytes)
        return self.task(name, phase, self.links, ms, after, self.rates.fleet.devices)

    def on_node_links(
        self,
        name: str,
        phase: str,
        times_ms: Iterable[float],
        after: Iterable[str],
    ) -> Task:
        """Collectives of the devices of each node, one after the other; ``rates.node``
        has their times."""
        gpus = self.rates.fleet.gpus_per_node
        return self.task(name, phase, NODE_LINK, sum(times_ms), after, gpus)

    def dense(
        self,
        network: DenseNetwork,
        batch: int,
        dtype: Dtype,
        bottom_after: Iterable[str],
        top_after: Iterable[str],
        resources: frozenset[Resource] = TENSOR_CORES,
        shared_by: int = 1,
    ) -> list[Task]:
        """Makes the tasks of forward and backward of the dense layers. After "cross
        backward" the gradients of the embeddings are known.

        Args:
          network: the layers.
          batch: samples on a device.
          dtype: data type of the values between layers.
          bottom_after: what the bottom MLP waits for.
          top_after: what else the cross layers and the top MLP wait for.
          resources: resources that a dense layer occupies.
          shared_by: devices of a node that split the layers, and compute all samples of
            the node together. What they sum is float32 in any data type.
        """
        bottom, cross_products, top = device_products(network, shared_by)
        batch *= shared_by

        def products_ms(products: Iterable[DeviceProduct]) -> float:
            return sum(
                self.rates.product_ms(batch, *made.product, dtype) for made in products
            )

        bottom_ms, cross_ms, top_ms = map(products_ms, (bottom, cross_products, top))
        # The inputs are joined. Each cross layer moves both factors, the sum and the
        # result forward; backward also the gradients of both factors.
        joined_bytes = batch * network.width * VALUE_BYTES[dtype]
        cross = network.cross_layers
        kernels = 1 + cross if network.width else 0
        forward_ms = self.rates.memory_ms((2 + 4 * cross) * joined_bytes, kernels)
        backward_ms = self.rates.memory_ms((2 + 7 * cross) * joined_bytes, kernels)

        tasks: list[Task] = []

        def compute(name: str, ms: float, after: Iterable[str], sums: Iterable[int]):
            sums_ms = [
                self.rates.node.all_reduce_ms(traffic.VALUE_BYTES * batch * values)
                for values in sums
            ]
            if not any(sums_ms):
                tasks.append(self.task(name, "dense", resources, ms, after))
                return
            products = f"{name}: products"
            tasks.append(self.task(products, "dense", resources, ms, after))
            tasks.append(self.on_node_links(name, "dense sums", sums_ms, [products]))

        def forward(*products: DeviceProduct) -> list[int]:
            return [made.forward_sum for made in products]

        def backward(*products: DeviceProduct) -> list[int]:
            return [made.backward_sum for made in products]

        compute("bottom forward", bottom_ms, bottom_after, forward(*bottom))
        compute(
            "top forward",
            cross_ms + top_ms + forward_ms,
            ("bottom forward", *top_after),
            forward(*cross_products, *top),
        )
        compute("top backward", 2 * top_ms, ("top forward",), backward(*top))
        compute(
            "cross backward",
            2 * cross_ms + backward_ms,
            ("top backward",),
            backward(*cross_products),
        )
        compute(
            "bottom backward", 2 * bottom_ms, ("cross backward",), backward(*bottom)
        )
        return tasks

    @property
    def links(self) -> frozenset[Resource]:
        """The links between all devices."""
        return LINKS if self.rates.fleet.nodes > 1 else NODE_LINK
