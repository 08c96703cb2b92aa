"""Rates: the time in which a fleet moves bytes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from embark_jax.plans.clusters import Reach
from embark_jax.plans.fleet import Fleet, Way
from embark_jax.plans.options import Dtype
from embark_jax.plans.products import Product
from embark_jax.plans.traffic import LinkBytes
from embark_jax.plans.wire import VALUE_BYTES

SLOWDOWN: dict[Dtype, int] = {"float32": 2, "bfloat16": 1, "float16": 1}
"""Time of a matrix product relative to bfloat16: float32 runs as TF32
(https://www.nvidia.com/en-us/data-center/h100/)."""
LONG_BYTES = 2**25
"""Buffer of a sum for which the planner's line is exact: gradients of many rows."""


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

    def memory_ms(self, moved_bytes, kernels: Any = 0, share: float | None = None):
        """Returns the time of kernels that together read and write these bytes of
        device memory, at this share of its bandwidth; None is that of rows."""
        efficiency = self.fleet.efficiency
        rate = self.fleet.device.memory_bytes_per_s * (share or efficiency.memory)
        return 1e3 * moved_bytes / rate + kernels * efficiency.kernel_us / 1e3

    def product_ms(
        self, samples: int, product: Product, dtype: Dtype = "bfloat16"
    ) -> float:
        """Returns the time of a matrix product on one device. Each of the two products
        of backward, which have the same three sizes in another order, takes as
        long."""
        inputs, outputs, rows = product.inputs, product.outputs, samples * product.times
        moved = rows * inputs + inputs * outputs + rows * outputs
        flops_per_s = self.fleet.device.flops_per_s * self.fleet.efficiency.flops
        flops = SLOWDOWN[dtype] * 2 * rows * inputs * outputs
        moving_ms = self.memory_ms(moved * VALUE_BYTES[dtype])
        return max(1e3 * flops / flops_per_s, moving_ms) + self.memory_ms(0.0, 1)

    def links_ms(self, sent: LinkBytes, latency_us: float = 0.0):
        """Returns the time of an exchange; both kinds of links work at once."""
        seconds = np.maximum(
            sent.node_link / self.node_link_bytes_per_s,
            sent.network / self.network_bytes_per_s,
        )
        return 1e3 * seconds + latency_us / 1e3

    @property
    def node_link_bytes_per_s(self) -> float:
        """What a program achieves between a device and others of its node."""
        return self.fleet.device.node_link_bytes_per_s * self.fleet.efficiency.link

    @property
    def network_bytes_per_s(self) -> float:
        """What a program achieves between a device and those of other nodes."""
        efficiency = self.fleet.efficiency
        share = efficiency.network or efficiency.link
        return self.fleet.device.network_bytes_per_s * share

    def store_ms(self, host_bytes, disk_bytes):
        """Returns the time in which rows come to a device from the memory of its node,
        or leave for it, and are read from a disk or written there."""
        device, efficiency = self.fleet.device, self.fleet.efficiency
        host_bytes_per_s = device.host_bytes_per_s or device.memory_bytes_per_s
        host_bytes_per_s *= efficiency.host or efficiency.link
        disk_bytes_per_s = device.disk_bytes_per_s or math.inf
        return 1e3 * (host_bytes / host_bytes_per_s + disk_bytes / disk_bytes_per_s)

    def all_reduce_ms(self, buffer_bytes: float) -> float:
        """Returns the time of a sum over all devices, in the fastest way."""
        return self._fastest_ms(buffer_bytes, times=2)

    def all_gather_ms(self, buffer_bytes: float) -> float:
        """Returns the time in which all devices get the parts of all, which go around
        one ring; a reduce-scatter takes as long."""
        return self._fastest_ms(buffer_bytes, times=1)

    def _fastest_ms(self, buffer_bytes: float, times: int) -> float:
        if not buffer_bytes or self.fleet.devices == 1:
            return 0.0
        lines = self._lines(times)
        return min(latency + byte * buffer_bytes for latency, byte in lines)

    @property
    def long_sum(self) -> tuple[float, float]:
        """ms of latency and ms a byte of the way that sums ``LONG_BYTES`` fastest: the
        sum as a line, for a search."""
        if self.fleet.devices == 1:
            return 0.0, 0.0
        return min(self._lines(2), key=lambda line: line[0] + line[1] * LONG_BYTES)

    def _lines(self, times: int) -> list[tuple[float, float]]:
        """Returns ms of latency and ms a byte of each way of a sum, in which values go
        around two times, or of a gather, in which they go around once."""
        of = self.fleet.efficiency
        alike = Way("ring", of.launch_us, of.node_hop_us, of.network_hop_us)
        lines = (self._line(way, times) for way in of.ways or (alike,))
        return [line for line in lines if line is not None]

    def _line(self, way: Way, times: int) -> tuple[float, float] | None:
        fleet, sums = self.fleet, times == 2
        nodes, gpus, devices = fleet.nodes, fleet.gpus_per_node, fleet.devices
        deep = 2 * math.floor(math.log2(nodes))
        passes = times * (devices - 1) / devices
        match way.algorithm:
            case "ring":
                node_hops, network_hops = times * (devices - nodes), times * (nodes - 1)
            case "tree" if sums:
                node_hops, network_hops, passes = 2 * (gpus - 1), deep, 2.0
            case "node" if sums and fleet.sharp != "none" and gpus > 1:
                node_hops, network_hops = 1, deep
            case "network" if sums and fleet.sharp == "network":
                node_hops, network_hops = 1, min(1, nodes - 1)
            case _:
                return None
        us = way.launch_us + node_hops * way.node_hop_us
        us += network_hops * way.network_hop_us
        bytes_per_s = math.inf
        if gpus > 1:
            bytes_per_s = way.node_share * self.node_link_bytes_per_s
        if nodes > 1:  # each GPU has a port
            ports = way.network_share * gpus * self.network_bytes_per_s
            bytes_per_s = min(bytes_per_s, ports, way.network_bytes_per_s)
        return us / 1e3, 1e3 * passes / bytes_per_s

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
