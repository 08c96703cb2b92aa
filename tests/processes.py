"""Programs that two processes of one machine run together."""

import os
import subprocess
import sys
from pathlib import Path

from embark_jax.launch.one_host import free_port
from tests import runs

ROOT = Path(__file__).parents[1]


def outputs_of_two(program: str, *args: str | Path, timeout_s: float) -> list[str]:
    """Runs a Python program in two processes, on CPU, with a device each.

    Args:
      program: code that takes the coordinator's port, its process's number and ``args``
        from the command line.
      timeout_s: seconds after which both are killed.

    Returns:
      What each process said.

    Raises:
      subprocess.TimeoutExpired: if one has not ended by then.
    """
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, port, str(index), *args],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(2)
    ]
    try:
        return [process.communicate(timeout=timeout_s)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()


def train_in_two(*args: str | Path) -> list[str]:
    """Runs ``embark train`` in two processes, on CPU; returns what each said."""
    several = ["--distributed", "--coordinator", f"localhost:{free_port()}"]
    several += ["--processes", "2", "--process-id"]
    processes = [
        runs.start(
            "train",
            *args,
            *several,
            str(number),
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for number in range(2)
    ]
    try:
        said = [process.communicate(timeout=400)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], said
    return said
