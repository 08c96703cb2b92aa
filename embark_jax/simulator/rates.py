"""From bytes and operations to milliseconds."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import numpy as np

from embark_jax.fleet import Fleet
from embark_jax.planner import traffic
from embark_jax.simulator.dense import Product

DType = Literal["float32", "bfloat16", "float16"]
"""Of dense layers; float32 products run as TF32, at half the rate of the others
(https://www.nvidia.com/en-us/data-center/h100/)."""
TF32_SLOWDOWN = 2


@dataclasses.dataclass(frozen=True)
class Rates:
    """How long a fleet takes; all arguments are of one device.

    Attributes:
      fleet: the machines, with what they achieve.
    """

    fleet: Fleet

    def memory_ms(self, moved_bytes, kernels: int = 0):
        """Of kernels that read and write so many bytes of device memory in all."""
        efficiency = self.fleet.efficiency
        rate = self.fleet.device.memory_bytes_per_s * efficiency.memory
        return 1e3 * moved_bytes / rate + kernels * efficiency.kernel_us / 1e3

    def links_ms(self, sent: traffic.LinkBytes, latency_us: float = 0.0):
        """Of a collective; both kinds of links work at once."""
        device = self.fleet.device
        seconds = np.maximum(
            sent.node_link / device.node_link_bytes_per_s,
            sent.network / device.network_bytes_per_s,
        )
        return 1e3 * seconds / self.fleet.efficiency.link + latency_us / 1e3

    def product_ms(self, batch: int, product: Product, dtype: DType) -> float:
        """``[batch, inputs]`` by ``[inputs, outputs]``; as long for each of the two
        products of backward, in which the three sizes change places."""
        inputs, outputs = product
        wide = dtype == "float32"
        moved_bytes = value_bytes(dtype) * (
            batch * inputs + inputs * outputs + batch * outputs
        )
        rate = self.fleet.device.flops_per_s * self.fleet.efficiency.flops
        seconds = 2 * batch * inputs * outputs / rate * (TF32_SLOWDOWN if wide else 1)
        kernel_ms = self.memory_ms(0.0, kernels=1)
        return max(1e3 * seconds, self.memory_ms(moved_bytes)) + kernel_ms

    @property
    def exchange_us(self) -> float:
        """Latency of an all-to-all: a launch and one hop, for all messages at once."""
        fleet, efficiency = self.fleet, self.fleet.efficiency
        if fleet.devices == 1:
            return 0.0
        across_nodes = fleet.nodes > 1
        hop_us = efficiency.network_hop_us if across_nodes else efficiency.node_hop_us
        return efficiency.launch_us + hop_us

    @property
    def reduce_us(self) -> float:
        """Latency of an all-reduce: a launch, and a tree over nodes and over the GPUs
        of each, up and down."""
        fleet, efficiency = self.fleet, self.fleet.efficiency
        if fleet.devices == 1:
            return 0.0
        up_us = efficiency.network_hop_us * math.ceil(math.log2(fleet.nodes))
        up_us += efficiency.node_hop_us * math.ceil(math.log2(fleet.gpus_per_node))
        return efficiency.launch_us + 2 * up_us


def value_bytes(dtype: DType) -> int:
    return 4 if dtype == "float32" else 2
