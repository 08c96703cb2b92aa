"""``embark doctor``."""

from __future__ import annotations

import importlib.metadata
import platform

from rich.table import Table

from embark_jax.cli.arguments import console, say


def doctor() -> None:
    """Show versions, devices, and which kernels are usable here."""
    versions = Table("package", "version", title="Versions")
    versions.add_row("python", platform.python_version())
    for package in ("embark_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint"):
        versions.add_row(package, importlib.metadata.version(package))
    console.print(versions)

    import embark_kernels
    import jax

    devices = Table("platform", "kind", "count", title="Devices")
    kinds = [(device.platform, device.device_kind) for device in jax.devices()]
    for kind in sorted(set(kinds)):
        devices.add_row(*kind, str(kinds.count(kind)))
    console.print(devices)

    if kinds[0][0] == "cpu":
        say("A CPU is made to look like as many devices as a config's mesh has.")

    kernels = Table("kernels", "usable", "why not", title="Kernels")
    for name, reason in embark_kernels.availability().items():
        kernels.add_row(name, "no" if reason else "yes", reason)
    console.print(kernels)
    say("A config chooses by embedding.kernels: xla (unless given), auto, or a name.")
