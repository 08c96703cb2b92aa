"""How XLA compiles for ``embark``: its flags, and where compiled programs are kept."""

from __future__ import annotations

import hashlib
import os
import platform
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from embark_jax.cli.host_memory import has_gpu

GPU_FLAGS = {
    # Runs collectives and copies beside computation. It is off unless asked for:
    # https://docs.jax.dev/en/latest/gpu_performance_tips.html
    "--xla_gpu_enable_latency_hiding_scheduler": "true",
}
CPU_INFO = Path("/proc/cpuinfo")


def set_up_xla(say: Callable[[str], None]) -> None:
    """Sets flags, and keeps compiled programs; to be called before JAX is used.

    What the user has set stays: any flag that ``XLA_FLAGS`` names, the folder that
    ``JAX_COMPILATION_CACHE_DIR`` names, and ``JAX_ENABLE_COMPILATION_CACHE=false``,
    which keeps no programs.

    Args:
      say: is told why no programs are kept.
    """
    if has_gpu():
        os.environ["XLA_FLAGS"] = xla_flags()
    import jax

    settings: Any = jax.config  # whose attributes type checkers do not know
    if settings.jax_compilation_cache_dir is None:
        folder = program_folder()
        try:
            _make_private(folder)
        except OSError as error:
            say(f"warning: compiled programs are not kept in {folder}: {error}")
        else:
            jax.config.update("jax_compilation_cache_dir", str(folder))


def xla_flags() -> str:
    """The user's XLA_FLAGS, and those that they say nothing of."""
    given = os.environ.get("XLA_FLAGS", "")
    named = {flag.partition("=")[0] for flag in given.split()}
    ours = [f"{name}={value}" for name, value in GPU_FLAGS.items() if name not in named]
    return " ".join([*given.split(), *ours])


def program_folder() -> Path:
    """Where compiled programs are kept, unless the user names another folder.

    JAX tells programs apart by version, flags and kind of GPU, but not by what a CPU
    can do; so hosts with other CPUs that share a home have folders of their own.
    """
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.is_file() else []
    able = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    known = f"{platform.system()} {platform.machine()} {able}"
    name = hashlib.sha256(known.encode()).hexdigest()[:16]
    return Path.home() / ".cache" / "embark_jax" / "programs" / name


def _make_private(folder: Path) -> None:
    """Creates a folder that nobody else can write to: what is in it is executed.

    Raises:
      OSError: if it cannot be created, or belongs to others or may be written by them.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError("others can write to it")
