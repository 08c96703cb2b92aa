"""``embark doctor``."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Any

from embark_jax.cli.arguments import console, say
from embark_jax.cli.jax_setup import GPU_FLAGS, set_up_jax, xla_flags


def doctor() -> None:
    """Show versions, devices, compiler settings, and which kernels run here."""
    from rich.table import Table

    versions = Table("package", "version", title="Versions")
    versions.add_row("python", platform.python_version())
    for package in ("embark_jax", "jax", "jaxlib", "flax", "optax", "tensorstore"):
        versions.add_row(package, importlib.metadata.version(package))
    console.print(versions)

    set_up_jax(say)
    import embark_kernels
    import jax

    from embark_jax.train.step import MATMUL_PRECISION

    devices = Table("platform", "kind", "count", title="Devices")
    kinds = [(device.platform, device.device_kind) for device in jax.devices()]
    for kind in sorted(set(kinds)):
        devices.add_row(*kind, str(kinds.count(kind)))
    console.print(devices)

    if kinds[0][0] == "cpu":
        say("On a CPU, training makes as many devices as the config's mesh has.")
    elif jax.__version_info__ < (0, 11, 1):
        say(
            "This jaxlib compiles sums of rows in plain XLA to loops of "
            "compare-and-swap, which are slow: take 0.11.1 or later, with Python 3.12."
        )

    compiling = Table("setting", "value", title="Compilation")
    flags = (flag.partition("=") for flag in xla_flags().split())
    values = {name: value for name, _, value in flags}
    for name in GPU_FLAGS:
        compiling.add_row(f"{name}, on GPUs", values[name] or "true")
    settings: Any = jax.config  # type checkers do not know its attributes
    kept = settings.jax_compilation_cache_dir
    if not settings.jax_enable_compilation_cache:
        kept = None
    compiling.add_row("cache of compiled programs", kept or "off")
    compiling.add_row("float32 matrix products", f"{MATMUL_PRECISION}: no TF32")
    console.print(compiling)

    kernels = Table("kernels", "usable", "why not", title="Kernels")
    for name, reason in embark_kernels.availability().items():
        kernels.add_row(name, "no" if reason else "yes", reason)
    console.print(kernels)
    why = embark_kernels.why_plain_xla()
    say(f"embedding.kernels=auto takes {f'xla: {why}' if why else 'mosaic_gpu'}")
