"""Chooses the implementation of an operation: plain XLA or the Mosaic GPU kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

Implementation = Literal["xla", "mosaic_gpu"]


def availability() -> dict[str, str]:
    """Returns for each implementation why it cannot run here, or "" if it can.

    "xla" is plain XLA and runs everywhere. "mosaic_gpu" is written in Pallas for
    Hopper GPUs (compute capability 9.0) and newer.
    """
    return {"xla": "", "mosaic_gpu": _why_not_mosaic_gpu()}


def why_plain_xla() -> str:
    """Returns why ``choose(None)`` takes plain XLA here; "" if it takes the kernels.

    It takes them where they can run and pass ``check``, once in a process.
    """
    if reason := why_no_kernels():
        return reason
    # Imported here, since it imports the operations, which import this module.
    from embark_kernels import check

    return check.problem()


def choose(
    implementation: str | None,
    width: int = 8,
    dtype: jax.typing.DTypeLike = jnp.float32,
) -> Implementation:
    """Chooses the implementation to run for a table.

    An explicit one is returned even if it cannot run here: this allows compiling a
    kernel for a GPU that this machine lacks.

    Args:
      implementation: "xla", "mosaic_gpu", or None for "mosaic_gpu" if it can run here
        and passes its check, and "xla" otherwise.
      width, dtype: those of the table; without a table, any that the kernel supports.

    Raises:
      ValueError: if the name is unknown, or the kernel cannot handle the table.
    """
    unsupported = _why_not_supported(width, dtype)
    return choose_unless(unsupported, implementation, why_plain_xla)


def choose_unless(
    unsupported: str, implementation: str | None, why_plain: Callable[[], str]
) -> Implementation:
    """Chooses the implementation of any operation.

    Args:
      unsupported: why the kernel cannot handle the arguments; "" if it can.
      implementation: as in ``choose``.
      why_plain: returns why plain XLA is taken here whatever the arguments are; "" if
        it is not.

    Raises:
      ValueError: if the name is unknown, or the kernel cannot handle the arguments.
    """
    match implementation:
        case None:
            return "xla" if unsupported or why_plain() else "mosaic_gpu"
        case "xla":
            return "xla"
        case "mosaic_gpu":
            if unsupported:
                raise ValueError(f"mosaic_gpu: {unsupported}")
            return "mosaic_gpu"
    raise ValueError(
        f"implementation is {implementation!r}, must be 'xla', 'mosaic_gpu' or None"
    )


def why_no_kernels(hopper: bool = False) -> str:
    """Returns why kernels cannot run here; "" if they can.

    Args:
      hopper: whether they are for Hopper alone, and not for newer GPUs.
    """
    reason = _why_not_mosaic_gpu(hopper)
    return f"mosaic_gpu {reason}" if reason else ""


def _why_not_mosaic_gpu(hopper: bool = False) -> str:
    device = jax.devices()[0]
    if device.platform != "gpu":
        return f"needs a GPU; JAX runs on {device.platform} here"
    capability = float(device.compute_capability)
    if capability < 9.0 or (hopper and capability >= 10.0):
        needed = "9.x" if hopper else "9.0"
        return (
            f"needs compute capability {needed}; {device.device_kind} has {capability}"
        )
    return ""


def _why_not_supported(width: int, dtype: jax.typing.DTypeLike) -> str:
    if dtype not in (jnp.float32, jnp.bfloat16):
        return f"table is {dtype}, must be float32 or bfloat16"
    if width % 8 or not 8 <= width <= 1024:
        return f"table is {width} wide, must be a multiple of 8 from 8 to 1024"
    return ""
