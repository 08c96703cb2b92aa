"""The fleet: the machine park a plan is made for, with its hardware constants.

All figures are per GPU and, for links, per direction, as the vendors' datasheets give
them; what share of them a program achieves is the cost model's business.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class DeviceSpec:
    """One accelerator and its links.

    Attributes:
      name: as the vendor calls it.
      memory_bytes: device memory.
      memory_bytes_per_s: device memory bandwidth.
      flops_per_s: dense bf16 (V100: fp16) matrix throughput.
      node_link_bytes_per_s: to the GPUs of its node.
      network_bytes_per_s: to other nodes.
    """

    name: str
    memory_bytes: float
    memory_bytes_per_s: float
    flops_per_s: float
    node_link_bytes_per_s: float
    network_bytes_per_s: float


# https://resources.nvidia.com/en-us-dgx-systems/ai-enterprise-dgx (DGX H100 datasheet)
H100_SXM = DeviceSpec("H100 SXM", 80e9, 3.35e12, 989e12, 450e9, 50e9)
# https://www.nvidia.com/en-us/data-center/h200/
H200_SXM = DeviceSpec("H200 SXM", 141e9, 4.8e12, 989e12, 450e9, 50e9)
# https://www.nvidia.com/en-us/data-center/a100/ (80 GB; DGX A100: 200 Gb/s a GPU)
A100_SXM_80GB = DeviceSpec("A100 SXM 80GB", 80e9, 2.04e12, 312e12, 300e9, 25e9)
# https://www.nvidia.com/en-us/data-center/v100/ (PCIe 3 x16, 100 Gb/s network)
V100_PCIE = DeviceSpec("V100 PCIe", 32e9, 0.90e12, 112e12, 16e9, 12.5e9)


@dataclasses.dataclass(frozen=True)
class Fleet:
    """``nodes`` machines of ``gpus_per_node`` equal devices.

    Raises:
      ValueError: if a count is below 1.
    """

    device: DeviceSpec
    nodes: int = 1
    gpus_per_node: int = 1

    def __post_init__(self):
        for key in ("nodes", "gpus_per_node"):
            if getattr(self, key) < 1:
                raise ValueError(f"fleet: {key} is {getattr(self, key)}, must be >= 1")

    @property
    def devices(self) -> int:
        return self.nodes * self.gpus_per_node


def dgx_h100(nodes: int = 1) -> Fleet:
    return Fleet(H100_SXM, nodes, gpus_per_node=8)


def dgx_h200(nodes: int = 1) -> Fleet:
    return Fleet(H200_SXM, nodes, gpus_per_node=8)


def dgx_a100(nodes: int = 1) -> Fleet:
    return Fleet(A100_SXM_80GB, nodes, gpus_per_node=8)


def this_machine(nodes: int = 1, gpus_per_node: int = 1) -> Fleet:
    """This computer's memory, shared by ``nodes × gpus_per_node`` host devices.

    Bandwidths and FLOP/s are placeholders of a laptop's order: they weigh terms against
    each other and predict nothing.
    """
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    share = memory_bytes / (nodes * gpus_per_node)
    host = DeviceSpec("host CPU", share, 20e9, 100e9, 10e9, 10e9)
    return Fleet(host, nodes, gpus_per_node)


BY_NAME: dict[str, Callable[[int], Fleet]] = {
    "dgx-h100": dgx_h100,
    "dgx-h200": dgx_h200,
    "dgx-a100": dgx_a100,
    "this-machine": this_machine,
}
"""Fleets of so many nodes, by the name that the command line knows."""
