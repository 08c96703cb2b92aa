"""The memory of this computer."""

from __future__ import annotations

import os
from pathlib import Path


def host_memory_bytes() -> int:
    """Returns the memory of this computer."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_memory_bytes() -> int:
    """Returns memory of this machine that programs can have without swapping anything
    out."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        fields = dict(line.split(":") for line in lines)
        return 1024 * int(fields["MemAvailable"].split()[0])
    except (OSError, KeyError):  # not Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
