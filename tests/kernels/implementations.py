"""Every operation in every implementation; the GPU kernels in Pallas' interpreter."""

import contextlib

import jax
import numpy as np
import pytest
from embark_kernels._mosaic import interpreted

FLOAT32_EPS = float(np.finfo(np.float32).eps)

each_implementation = pytest.mark.parametrize("implementation", ["xla", "mosaic_gpu"])


def run(implementation, function, *args):
    """``function(*args)``, compiled, in an implementation that it names itself."""
    kernels = implementation == "mosaic_gpu"
    with interpreted() if kernels else contextlib.nullcontext():
        return jax.jit(function)(*args)


def run_gpu_programs(monkeypatch):
    """Plain XLA takes on CPU, too, what it else compiles for GPUs alone."""
    monkeypatch.setattr(
        jax.lax, "platform_dependent", lambda *args, cpu, default: default(*args)
    )


def assert_sums_close(actual, expected, magnitude, terms):
    """Equal up to float32 rounding: one eps of the sum of magnitudes for each term,
    and two more for the factors."""
    error = np.abs(np.asarray(actual, np.float64) - expected)
    assert np.all(error <= (terms + 2) * FLOAT32_EPS * magnitude)
