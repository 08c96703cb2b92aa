"""``embark doctor``."""

from __future__ import annotations

import importlib.metadata
import platform
from collections import Counter
from typing import Any

from embark_jax.cli.arguments import say, show_table
from embark_jax.cli.jax_setup import GPU_FLAGS, set_up_jax, xla_flags

PACKAGES = "embark_jax", "jax", "jaxlib", "flax", "optax", "tensorstore"


def doctor() -> None:
    """Show versions, devices, compiler settings, and which kernels run here."""
    versions = {"python": platform.python_version()}
    versions |= {name: importlib.metadata.version(name) for name in PACKAGES}
    show_table("Versions", {"package": "", "version": ""}, versions.items())

    set_up_jax(say)
    import embark_kernels
    import jax

    from embark_jax.train.step import MATMUL_PRECISION

    kinds = Counter((each.platform, each.device_kind) for each in jax.devices())
    devices = {"platform": "", "kind": "", "count": ""}
    show_table("Devices", devices, ((*kind, n) for kind, n in sorted(kinds.items())))

    if jax.default_backend() == "cpu":
        say("On a CPU, training makes as many devices as the config's mesh has.")
    elif jax.__version_info__ < (0, 11, 1):
        say(
            "This jaxlib compiles sums of rows in plain XLA to loops of "
            "compare-and-swap, which are slow: take 0.11.1 or later, with Python 3.12."
        )

    flags = (flag.partition("=") for flag in xla_flags().split())
    values = {name: value or "true" for name, _, value in flags}
    compiling = {f"{name}, on GPUs": values[name] for name in GPU_FLAGS}
    settings: Any = jax.config  # type checkers do not know its attributes
    is_cached = settings.jax_enable_compilation_cache
    kept = is_cached and settings.jax_compilation_cache_dir
    compiling["cache of compiled programs"] = kept or "off"
    compiling["float32 matrix products"] = f"{MATMUL_PRECISION}: no TF32"
    show_table("Compilation", {"setting": "", "value": ""}, compiling.items())

    reasons = embark_kernels.availability().items()
    rows = ((name, "no" if why else "yes", why) for name, why in reasons)
    show_table("Kernels", {"kernels": "", "usable": "", "why not": ""}, rows)
    why = embark_kernels.why_plain_xla()
    say(f"embedding.kernels=auto takes {f'xla: {why}' if why else 'mosaic_gpu'}")
