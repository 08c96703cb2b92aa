"""The fleet: the machines that a plan is made for, with their hardware constants.

The figures, each with its source, are in ``configs/fleets``, one YAML file for each
fleet. All are per device and, for links, per direction, as in the vendors' datasheets;
``Efficiency`` is the share of them that a program achieves.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import pydantic.dataclasses
from pydantic import BeforeValidator, Field

from embark_jax._base import yaml_text
from embark_jax._base.config import Config, ConfigError, nearest, read_text
from embark_jax._base.memory import host_memory_bytes
from embark_jax._base.validation import validated
from embark_jax.plans.tables import MOST_DEVICES, positive_int

FILES = Path(__file__).parents[1] / "config_files" / "fleets"
"""``configs/fleets``, through a link that a built package has as a folder."""

BY_NAME = {path.stem.replace("_", "-"): path for path in FILES.glob("*.yaml")}
"""File of each fleet, by its name on the command line."""
GPU_EFFICIENCY = "efficiency/gpu.yaml"
THIS_MACHINE = "this machine"

Figure = Annotated[float, Field(ge=1, le=1e30)]
"""Bytes, bytes or operations a second, of any machine."""
Share = Annotated[float, Field(ge=1e-6, le=1e9)]
"""Share of a figure; the placeholders of a fleet may be exceeded."""
Microseconds = Annotated[float, Field(ge=0, le=1e9)]

_STRICT = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)


def _memory_bytes(value: Any) -> Any:
    """Replaces the text for this computer's memory by its size; a figure stays."""
    return host_memory_bytes() if value == THIS_MACHINE else value


@pydantic.dataclasses.dataclass(frozen=True, config=_STRICT)
class DeviceSpec:
    """One accelerator and its links.

    Attributes:
      name: the vendor's name for it.
      memory_bytes: device memory.
      memory_bytes_per_s: device memory bandwidth.
      flops_per_s: dense bf16 (V100: fp16) matrix throughput.
      node_link_bytes_per_s: bandwidth to the GPUs of its node.
      network_bytes_per_s: bandwidth to other nodes.
      host_bytes_per_s: bandwidth to the memory of its node, its share of it where
        several devices share a link; for tables of tier host and disk. None, where it
        is not known, counts as device memory's.
      host_memory_bytes: its share of the memory of its node that tables of tier host
        may take; None where it is not known, and no limit.
      disk_bytes_per_s: its share of what the node's disks read, in blocks of 4 KB at
        random, for tables of tier disk; None, where it is not known, counts as no
        slower than the link to the node.
      disk_memory_bytes: its share of the node's disks; None as for host memory.
    """

    name: str
    memory_bytes: Annotated[Figure, BeforeValidator(_memory_bytes)]
    memory_bytes_per_s: Figure
    flops_per_s: Figure
    node_link_bytes_per_s: Figure
    network_bytes_per_s: Figure
    host_bytes_per_s: Figure | None = None
    host_memory_bytes: Figure | None = None
    disk_bytes_per_s: Figure | None = None
    disk_memory_bytes: Figure | None = None

    def divided(self, devices: int) -> DeviceSpec:
        """Returns a device with the share of each of these devices in all figures."""
        figures = dataclasses.asdict(self)
        name = figures.pop("name")
        stated = {k: value for k, value in figures.items() if value is not None}
        return DeviceSpec(name, **{k: value / devices for k, value in stated.items()})


@pydantic.dataclasses.dataclass(frozen=True, config=_STRICT)
class Way:
    """A way in which NCCL sums over devices or gathers from them: an algorithm, with a
    protocol.

    Attributes:
      algorithm: a "ring" of all devices, alone also for gathers; a "tree" over nodes,
        with a chain in each; a tree over nodes in which the switches of each add
        ("node"); or switches of nodes and network that add ("network").
      launch_us, node_hop_us, network_hop_us: latency of it, and of each hop inside a
        node and between nodes.
      node_share, network_share: bandwidth of its hops, as a share of what a program
        achieves on the links.
      network_bytes_per_s: most bandwidth between two nodes.
    """

    algorithm: Literal["ring", "tree", "node", "network"]
    launch_us: Microseconds
    node_hop_us: Microseconds
    network_hop_us: Microseconds
    node_share: Share = 1.0
    network_share: Share = 1.0
    network_bytes_per_s: Figure = 1e30


@pydantic.dataclasses.dataclass(frozen=True, config=_STRICT)
class Efficiency:
    """Shares of a device's figures that a program achieves, and latencies.

    Attributes:
      memory: share of the memory bandwidth, where rows are gathered and scattered.
      link, network: share of the bandwidth of node links, and of the network; None
        there is as of node links.
      ids, xla_ids: share of the memory bandwidth where ids are sorted and grouped, with
        the GPU kernels or in plain XLA; None as of rows.
      host: share of the bandwidth to host memory of what comes and what leaves, added
        up; None as of node links.
      flops: share of the FLOP/s, in dense layers.
      launch_us, node_hop_us, network_hop_us: latency of an exchange, and of the hop
        that it takes.
      message_us: latency of each message that an all-to-all sends to a device of
        another node.
      kernel_us: time of a kernel and its launch, beside what it moves.
      ways: ways of sums and gathers; without any these are rings, with the latencies
        of an exchange.
    """

    memory: Share
    link: Share
    flops: Share
    launch_us: Microseconds
    node_hop_us: Microseconds
    network_hop_us: Microseconds
    message_us: Microseconds = 0.0
    kernel_us: Microseconds = 0.0
    network: Share | None = None
    ids: Share | None = None
    xla_ids: Share | None = None
    host: Share | None = None
    ways: tuple[Way, ...] = ()


Adding = Literal["none", "node", "network"]
"""Whose switches add values that pass (NVIDIA SHARP): none, those of the node links, or
those of the network, too."""


class FleetFile(Config):
    """The schema of a fleet's YAML file.

    ``efficiency`` is the section itself, or the path of its file, relative to this one;
    such a file may say ``like: another file`` and only what differs from it.
    The figures of a ``shared`` device are those of a whole machine, whose devices
    divide them among themselves. ``placeholders`` says that nobody measured the
    figures. ``measured`` is a record that nothing reads.
    """

    device: DeviceSpec
    gpus_per_node: Annotated[int, Field(ge=1, le=MOST_DEVICES)]
    efficiency: Efficiency
    shared: bool = False
    placeholders: bool = False
    sharp: Adding = "none"
    measured: Mapping[str, float] = {}


@functools.cache
def gpu_efficiency() -> Efficiency:
    """Returns the efficiency of GPUs, up to Hopper's."""
    return Efficiency(**_read(FILES / GPU_EFFICIENCY))


@dataclasses.dataclass(frozen=True)
class Fleet:
    """``nodes`` machines of ``gpus_per_node`` equal devices; ``placeholders`` says that
    their figures are made up, ``shared`` that they are devices of a host, which divide
    its cores and memory among themselves, ``sharp`` whose switches add.

    Raises:
      ValueError: if a count is not a whole number, or below 1.
    """

    device: DeviceSpec
    nodes: int = 1
    gpus_per_node: int = 1
    efficiency: Efficiency = dataclasses.field(default_factory=gpu_efficiency)
    placeholders: bool = False
    shared: bool = False
    sharp: Adding = "none"

    def __post_init__(self):
        if not isinstance(self.device, DeviceSpec):
            raise ValueError(
                f"fleet: device is {self.device!r}, must be a DeviceSpec; known fleets "
                f"are functions of embark_jax.fleets, such as dgx_h100(nodes=2)"
            )
        for key in ("nodes", "gpus_per_node"):
            object.__setattr__(
                self,
                key,
                positive_int(f"fleet: {key}", getattr(self, key), MOST_DEVICES),
            )

    @property
    def devices(self) -> int:
        """Number of devices of all nodes."""
        return self.nodes * self.gpus_per_node


def load(source: str, nodes: int = 1, gpus_per_node: int | None = None) -> Fleet:
    """Loads a fleet by its name, or from a YAML file like those in ``configs/fleets``.

    Args:
      source: name in ``BY_NAME``, or path of a ``.yaml`` file.
      nodes: number of machines.
      gpus_per_node: number of devices of a machine; None takes the number in the file.

    Raises:
      ConfigError: if there is no such fleet, or with every problem of its file.
      ValueError: if a count is not a whole number, or below 1.
    """
    if source in BY_NAME:
        path = BY_NAME[source]
    elif source.endswith((".yaml", ".yml")):
        path = Path(source)
    else:
        raise ConfigError(
            f"fleet is {source!r}, must be the path of a .yaml file or a known name; "
            + nearest(source, BY_NAME)
        )
    data = _read(path)
    if isinstance(data.get("efficiency"), str):
        data["efficiency"] = _read_efficiency(path.parent / data["efficiency"])
    file = validated(FleetFile, data, (), f"fleet: {path}")
    gpus = file.gpus_per_node if gpus_per_node is None else gpus_per_node
    fleet = Fleet(
        file.device,
        nodes,
        gpus,
        file.efficiency,
        file.placeholders,
        file.shared,
        file.sharp,
    )
    if not file.shared:
        return fleet
    return dataclasses.replace(fleet, device=file.device.divided(fleet.devices))


def dgx_h100(nodes: int = 1, gpus_per_node: int = 8) -> Fleet:
    return load("dgx-h100", nodes, gpus_per_node)


def this_machine(nodes: int = 1, gpus_per_node: int = 1) -> Fleet:
    """Returns this computer; ``nodes × gpus_per_node`` host devices divide its memory.

    Bandwidths and FLOP/s are placeholders of a laptop's order: they weigh terms against
    each other and predict nothing.
    """
    return load("this-machine", nodes, gpus_per_node)


def _read_efficiency(path: Path) -> dict[str, Any]:
    """Reads a file and the one that it is ``like``, which is like no other."""
    data = _read(path)
    if not isinstance(data.get("like"), str):
        return data
    return _read(path.parent / data.pop("like")) | data


def _read(path: Path) -> dict[str, Any]:
    try:
        text = read_text(path)
    except ConfigError as error:
        raise ConfigError(f"fleet: {error}") from None
    try:
        data = yaml_text.parse(text)
    except ConfigError as error:
        raise ConfigError(f"fleet: {path}, {error}") from None
    if not isinstance(data, Mapping):
        raise ConfigError(f"fleet: {path}: must be a mapping, is {data!r:.80}")
    return dict(data)
