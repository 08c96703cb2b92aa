"""Sets up JAX for ``embark``: memory of steps on CPU, XLA's flags, and the cache of
compiled programs."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from embark_jax._base.devices import has_gpu

GPU_FLAGS = {
    # Runs collectives and copies beside computation. It is off unless asked for:
    # https://docs.jax.dev/en/latest/gpu_performance_tips.html
    "--xla_gpu_enable_latency_hiding_scheduler": "true",
}
CPU_INFO = Path("/proc/cpuinfo")
# From glibc's malloc.h: https://sourceware.org/glibc/manual/latest/html_node/
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
NEVER = 2**31 - 1


def set_up_jax(say: Callable[[str], None]) -> None:
    """Sets what JAX reads at its start. Call it before using JAX, and before any thread
    starts.

    The user's settings stay: any flag in ``XLA_FLAGS``, the folder that
    ``JAX_COMPILATION_CACHE_DIR`` names, and ``JAX_ENABLE_COMPILATION_CACHE=false``,
    which disables the cache.

    Args:
      say: called with the reason if there is no cache.
    """
    if has_gpu():
        os.environ["XLA_FLAGS"] = xla_flags()
    else:
        keep_freed_memory()
    import jax

    settings: Any = jax.config  # type checkers do not know its attributes
    if settings.jax_compilation_cache_dir is None:
        folder = program_folder()
        try:
            _make_private(folder)
        except OSError as error:
            say(f"warning: compiled programs are not cached in {folder}: {error}")
        else:
            jax.config.update("jax_compilation_cache_dir", str(folder))


def keep_freed_memory() -> None:
    """Lets this process use freed memory again instead of asking for fresh pages.

    A step on CPU allocates its temporaries anew. By default glibc unmaps the large ones
    at the end of the step, and touching their fresh pages costs more than the
    arithmetic. With this the process stays as large as it has ever been.
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, NEVER)
        mallopt(M_ARENA_MAX, 1)


def xla_flags() -> str:
    """Returns the user's XLA_FLAGS, and those of ours that the user does not set."""
    theirs = os.environ.get("XLA_FLAGS", "").split()
    named = {flag.partition("=")[0] for flag in theirs}
    ours = [f"{name}={value}" for name, value in GPU_FLAGS.items() if name not in named]
    return " ".join([*theirs, *ours])


def program_folder() -> Path:
    """Returns the folder of the cache of compiled programs, unless the user names
    another.

    JAX tells programs apart by version, flags and kind of GPU, but not by the features
    of a CPU. So hosts with different CPUs that share a home use different folders.
    """
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.is_file() else []
    able = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    cpu = f"{platform.system()} {platform.machine()} {able}"
    name = hashlib.sha256(cpu.encode()).hexdigest()[:16]
    return Path.home() / ".cache" / "embark_jax" / "programs" / name


def _make_private(folder: Path) -> None:
    """Creates a folder that nobody else can write to, since its programs are executed.

    Raises:
      OSError: if it cannot be created, belongs to others, or others can write to it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError("others can write to it")
