"""Keeps the C library from giving memory back to the kernel between steps."""

from __future__ import annotations

import ctypes
import platform

# Of malloc.h of glibc: https://sourceware.org/glibc/manual/latest/html_node/
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Lets this process use freed memory again instead of asking for fresh pages.

    A step on CPU allocates its temporaries anew; with glibc's defaults large ones are
    unmapped at its end, and touching their fresh pages costs more than the arithmetic.
    The process stays as large as it has ever been. As the environment variables
    ``MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=2147483647 MALLOC_ARENA_MAX=1``; does
    nothing without glibc. To be called before threads are started.
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, NEVER)
        mallopt(M_ARENA_MAX, 1)
