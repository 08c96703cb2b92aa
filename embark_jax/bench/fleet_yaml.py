"""Writes measured rates as the YAML file of a fleet."""

from __future__ import annotations

import dataclasses
import datetime
from importlib import metadata

import jax

from embark_jax.bench.calibrate import Rates
from embark_jax.plans.fleet import THIS_MACHINE, gpu_efficiency

SORT_BYTES = 36
"""What a radix sort of 32-bit keys moves for each: it reads and writes all in each of
four passes, and reads them once more to count."""


def fleet_yaml(rates: Rates) -> str:
    """The devices of this process group as a fleet of one node.

    The device's figures are the measured ones, so the efficiency only says how much
    less the work of a step achieves than a copy and a square matrix product. Host
    devices share one machine: the file has its totals.
    """
    device, devices = jax.devices()[0], jax.device_count()
    shared = device.platform == "cpu"
    whole = devices if shared else 1
    memory, note = THIS_MACHINE, ""
    if not shared:
        memory, note = _figure((device.memory_stats() or {})["bytes_limit"]), "its pool"
    link, launch_us, hop_us, how = _links(rates, devices)
    rows = min(rates.gather_bytes_per_s, rates.scatter_bytes_per_s)
    memory_share = rows / rates.copy_bytes_per_s
    layer_share = rates.layer_flops_per_s / rates.matmul_flops_per_s
    ids_share = SORT_BYTES * rates.sort_keys_per_s / rates.copy_bytes_per_s
    kernel_us = 0.0 if shared else gpu_efficiency().kernel_us
    sums = (rates.all_reduce_bytes_per_s or link) / link
    guess = "not measured: as inside the node"
    hops = f"node_hop_us: {_figure(hop_us)}, network_hop_us: {_figure(hop_us)}"
    ring = f"{{algorithm: ring, launch_us: {_figure(launch_us)}, {hops}, "
    ring += f"node_share: {_figure(sums)}}}"
    sections: dict[str, list[tuple[str, float | str, str]]] = {
        "device": [
            ("name", repr(device.device_kind), ""),
            ("memory_bytes", memory, note),
            ("memory_bytes_per_s", whole * rates.copy_bytes_per_s, "measured: copy"),
            ("flops_per_s", whole * rates.matmul_flops_per_s, "measured: square"),
            ("node_link_bytes_per_s", whole * link, f"{how}: all-to-all"),
            ("network_bytes_per_s", whole * link, guess),
        ],
        "efficiency": [
            ("memory", memory_share, "measured: gather or scatter, the slower"),
            ("link", 1.0, "the figures above are achieved ones"),
            ("flops", layer_share, "measured: a layer of 512 × 512"),
            ("launch_us", launch_us, f"{how}: collectives of a few bytes"),
            ("node_hop_us", hop_us, f"{how}: all-reduce against all-to-all"),
            ("network_hop_us", hop_us, guess),
            ("ids", ids_share, "measured: a sort"),
            ("xla_ids", ids_share, "the same"),
            ("kernel_us", kernel_us, "not measured: as on other GPUs, or none"),
            ("ways", f"\n    - {ring}", f"{how}: all-reduce"),
        ],
        "measured": [
            (name, value, "")
            for name, value in dataclasses.asdict(rates).items()
            if value is not None
        ],
    }
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    versions = ", ".join(f"{p} {metadata.version(p)}" for p in ("jax", "jaxlib"))
    lines = [
        f"# {devices} × {device.device_kind} ({device.platform}), {versions}, {today}:",
        "# measured by `embark bench calibrate` with all devices at work.",
        f"gpus_per_node: {devices}",
        f"shared: {str(shared).lower()} # whether the devices divide the figures",
    ]
    for section, figures in sections.items():
        lines.append(f"{section}:")
        for name, value, note in figures:
            shown = value if isinstance(value, str) else _figure(value)
            lines.append(f"  {name}: {shown}" + (f" # {note}" if note else ""))
    return "\n".join(lines) + "\n"


def _links(rates: Rates, devices: int) -> tuple[float, float, float, str]:
    """``(bytes/s, launch µs, hop µs, how they are known)``.

    An all-to-all takes a launch and a hop; an all-reduce takes a launch and a hop to
    each other device, twice around.
    """
    if (
        rates.all_to_all_bytes_per_s is None
        or rates.all_to_all_us is None
        or rates.all_reduce_us is None
    ):
        return rates.copy_bytes_per_s, 0.0, 0.0, "not measured, a device alone"
    more_hops = 2 * (devices - 1) - 1
    hop_us = max(rates.all_reduce_us - rates.all_to_all_us, 0.0) / more_hops
    hop_us = min(hop_us, rates.all_to_all_us)
    launch_us = rates.all_to_all_us - hop_us
    return rates.all_to_all_bytes_per_s, launch_us, hop_us, "measured"


def _figure(value: float) -> str:
    return f"{value:.3g}"
