"""Keeps the C library from giving memory back to the kernel between steps on CPU."""

from __future__ import annotations

import ctypes
import platform

from embark_jax._base.devices import has_gpu

# From glibc's malloc.h: https://sourceware.org/glibc/manual/latest/html_node/
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4
M_ARENA_MAX = -8
NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Lets this process use freed memory again instead of asking for fresh pages.

    A step on CPU allocates its temporaries anew. By default glibc unmaps the large ones
    at the end of the step, and touching their fresh pages costs more than the
    arithmetic. With this the process stays as large as it has ever been, as with the
    environment variables
    ``MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=2147483647 MALLOC_ARENA_MAX=1``. It
    does nothing without glibc or where steps run on GPUs, whose host would gain
    nothing. Call it before any thread starts, so before JAX knows its devices.
    """
    if platform.libc_ver()[0] == "glibc" and not has_gpu():
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, NEVER)
        mallopt(M_ARENA_MAX, 1)
