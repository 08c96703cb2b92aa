"""Eight CPU devices, strict numerics, and hypothesis without a clock."""

from __future__ import annotations

import os

# Read when jax is imported, so set before that.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis
import jax

CPU_DEVICES = 8


def pytest_configure(config):
    jax.config.update("jax_num_cpu_devices", CPU_DEVICES)
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    for module in ("embark_jax", "embark_kernels"):
        config.addinivalue_line("filterwarnings", rf"error:::{module}\b.*")

    # CI tries the same examples every time; elsewhere each run explores new ones.
    hypothesis.settings.register_profile("dev", deadline=None)
    hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")
