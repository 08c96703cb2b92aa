"""Which implementations of the operations run here."""

from __future__ import annotations

import jax


def availability() -> dict[str, str]:
    """For each implementation why it cannot run here; "" if it can.

    "xla" is plain XLA and runs everywhere. "mosaic_gpu" is written in Pallas for
    Hopper GPUs (compute capability 9.0) and newer.
    """
    return {"xla": "", "mosaic_gpu": _why_not_mosaic_gpu()}


def _why_not_mosaic_gpu() -> str:
    device = jax.devices()[0]
    if device.platform != "gpu":
        return f"needs a GPU; JAX runs on {device.platform} here"
    capability = float(device.compute_capability)
    if capability < 9.0:
        return f"needs compute capability 9.0; {device.device_kind} has {capability}"
    return "no kernel is written yet; the operations run in plain XLA"
