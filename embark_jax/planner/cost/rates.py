"""Rates: the time in which a fleet moves bytes."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from embark_jax.plans.clusters import Reach
from embark_jax.plans.fleet import Fleet
from embark_jax.plans.options import Dtype
from embark_jax.plans.traffic import LinkBytes, all_gather_bytes, all_reduce_bytes
from embark_jax.plans.wire import VALUE_BYTES

SLOWDOWN: dict[Dtype, int] = {"float32": 2, "bfloat16": 1, "float16": 1}
"""Time of a matrix product relative to bfloat16: float32 runs as TF32
(https://www.nvidia.com/en-us/data-center/h100/)."""


@dataclasses.dataclass(frozen=True)
class Rates:
    """Converts bytes of one device to milliseconds.

    Attributes:
      fleet: the machines, with their efficiency.
    """

    fleet: Fleet

    def of(self, reach: Reach) -> Rates:
        """Returns the rates of collectives of these devices: of all, inside each node,
        or between those of equal rank of all nodes."""
        counts = {"fleet": {}, "node": {"nodes": 1}, "rail": {"gpus_per_node": 1}}
        return Rates(dataclasses.replace(self.fleet, **counts[reach]))

    def memory_ms(self, moved_bytes, kernels: int = 0):
        """Returns the time of kernels that together read and write these bytes of
        device memory."""
        efficiency = self.fleet.efficiency
        rate = self.fleet.device.memory_bytes_per_s * efficiency.memory
        return 1e3 * moved_bytes / rate + kernels * efficiency.kernel_us / 1e3

    def product_ms(
        self, samples: int, inputs: float, outputs: float, dtype: Dtype = "bfloat16"
    ) -> float:
        """Returns the time of the matrix product ``[samples, inputs]`` by ``[inputs,
        outputs]`` on one device. Each of the two products of backward, which have the
        same three sizes in another order, takes as long."""
        moved = samples * inputs + inputs * outputs + samples * outputs
        flops_per_s = self.fleet.device.flops_per_s * self.fleet.efficiency.flops
        flops = SLOWDOWN[dtype] * 2 * samples * inputs * outputs
        moving_ms = self.memory_ms(moved * VALUE_BYTES[dtype])
        return max(1e3 * flops / flops_per_s, moving_ms) + self.memory_ms(0.0, 1)

    def links_ms(self, sent: LinkBytes, latency_us: float = 0.0):
        """Returns the time of a collective; both kinds of links work at once."""
        device = self.fleet.device
        seconds = np.maximum(
            sent.node_link / device.node_link_bytes_per_s,
            sent.network / device.network_bytes_per_s,
        )
        return (1e3 / self.fleet.efficiency.link) * seconds + latency_us / 1e3

    def store_ms(self, host_bytes, disk_bytes):
        """Returns the time in which rows come to a device from the memory of its node,
        or leave for it, and are read from a disk or written there."""
        device = self.fleet.device
        host_bytes_per_s = device.host_bytes_per_s or device.memory_bytes_per_s
        host_bytes_per_s *= self.fleet.efficiency.link
        disk_bytes_per_s = device.disk_bytes_per_s or math.inf
        return 1e3 * (host_bytes / host_bytes_per_s + disk_bytes / disk_bytes_per_s)

    def all_reduce_ms(self, buffer_bytes: float) -> float:
        """Returns the time of a sum over all devices: the less of two ways, one of low
        latency and one of high bandwidth, as NCCL chooses."""
        fleet, short = self.fleet, self.fleet.efficiency.short_reduce
        if not buffer_bytes or fleet.devices == 1:
            return 0.0
        sent = all_reduce_bytes(buffer_bytes, fleet.nodes, fleet.gpus_per_node)
        long_ms = float(self.links_ms(sent, self.reduce_us))
        if short is None:
            return long_ms
        up_us = short.network_hop_us * math.floor(math.log2(fleet.nodes))
        up_us += short.node_hop_us * (fleet.gpus_per_node - 1)
        latency_ms = (short.launch_us + 2 * up_us) / 1e3
        return min(long_ms, latency_ms + 1e3 * buffer_bytes / short.bytes_per_s)

    def all_gather_ms(self, buffer_bytes: float) -> float:
        """Returns the time in which all devices get the parts of all, which go around
        one ring; a reduce-scatter takes as long."""
        fleet, efficiency = self.fleet, self.fleet.efficiency
        if not buffer_bytes or fleet.devices == 1:
            return 0.0
        sent = all_gather_bytes(buffer_bytes, fleet.nodes, fleet.gpus_per_node)
        hops_us = efficiency.network_hop_us * (fleet.nodes - 1)
        hops_us += efficiency.node_hop_us * (fleet.devices - fleet.nodes)
        return float(self.links_ms(sent, efficiency.launch_us + hops_us))

    @property
    def exchange_us(self) -> float:
        """Latency of an all-to-all: a launch, one hop, and a message to each device of
        other nodes."""
        fleet, efficiency = self.fleet, self.fleet.efficiency
        if fleet.devices == 1:
            return 0.0
        if fleet.nodes == 1:
            return efficiency.launch_us + efficiency.node_hop_us
        messages = fleet.devices - fleet.gpus_per_node
        hop_us = efficiency.network_hop_us + messages * efficiency.message_us
        return efficiency.launch_us + hop_us

    @property
    def reduce_us(self) -> float:
        """Latency of a long all-reduce: a launch, and a tree over nodes and over the
        GPUs of each, up and down."""
        fleet, efficiency = self.fleet, self.fleet.efficiency
        if fleet.devices == 1:
            return 0.0
        up_us = efficiency.network_hop_us * math.ceil(math.log2(fleet.nodes))
        up_us += efficiency.node_hop_us * math.ceil(math.log2(fleet.gpus_per_node))
        return efficiency.launch_us + 2 * up_us
