"""The accelerators of this computer, as far as one can know without JAX."""

from __future__ import annotations

import os
from pathlib import Path

DEVICES = Path("/dev")


def has_gpu() -> bool:
    """Says whether JAX would use a GPU, as far as one can know before it starts."""
    if platforms := os.environ.get("JAX_PLATFORMS"):
        return platforms.split(",")[0] != "cpu"
    names = ("nvidia[0-9]*", "kfd")  # NVIDIA and AMD
    return any(True for name in names for _ in DEVICES.glob(name))
