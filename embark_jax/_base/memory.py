"""The memory of this computer, and amounts of memory in words."""

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
        return host_memory_bytes() // 2


def byte_unit(largest_bytes: float) -> tuple[str, float]:
    """Returns the name and size of the unit in which these bytes read well."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if largest_bytes >= size:
            return unit, size
    return "bytes", 1.0


def bytes_text(number: float) -> str:
    """Formats bytes with three figures, such as "12.3 kB"."""
    unit, size = byte_unit(number)
    return f"{number / size:.3g} {unit}"
