"""Starts the processes of a run on this machine, and starts them again when one fails.

On many hosts this is the scheduler's: Slurm, Kubernetes, MPI, Ray.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from embark_jax._base.errors import may_pass

FAILED = 1
"""Exit status of a process that may do better when it starts again."""
USER_ERROR = 2
"""Exit status of a process that would fail again: config, data or folder are wrong."""
LOST = 3
"""Exit status of a process that has lost another one, which is the cause."""
POLL_S = 0.1
GRACE_S = 10
"""Time for the others to say why they end, after one has failed."""
PR_SET_PDEATHSIG = 1
"""From Linux's prctl.h: https://man7.org/linux/man-pages/man2/prctl.2.html"""


def run(
    command: Sequence[str],
    processes: int,
    restarts: int,
    say: Callable[[str], None],
    to_resume: str,
) -> int:
    """Runs a command as several processes that train together.

    SIGTERM and the first Ctrl-C end all with a checkpoint; a second Ctrl-C ends them at
    once.

    Args:
      command: trains with ``--distributed`` and ``--workdir``; ``--resume`` is added
        when it starts again.
      processes: number of processes.
      restarts: how often all start again after one has failed, unless it would fail
        again.
      say: shows a message to the user.
      to_resume: command that goes on with the run, to be shown when it has failed.

    Returns:
      The exit status of the process that failed, or 0.
    """
    running: list[subprocess.Popen] = []
    interrupts = 0

    def pass_on(number: int, _) -> None:
        nonlocal interrupts
        interrupts += 1
        kill = number == signal.SIGINT and interrupts > 1
        for process in running:
            process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    for attempt in range(restarts + 1):
        running[:] = _start(
            [*command, *(["--resume"] if attempt else [])],
            processes,
        )
        failed, status = _wait(running)
        if status == 0 or interrupts:
            return status if status >= 0 else 128 - status
        if status == USER_ERROR:
            if restarts:
                say(
                    f"process {failed} would fail again (exit status {status}): none "
                    "starts"
                )
            return status
        why = f"exit status {status}" if status > 0 else signal.Signals(-status).name
        if status == -signal.SIGKILL:
            why += " (as the system does where memory runs out)"
        if attempt == restarts:
            say(f"process {failed} ended by {why}, and the run with it; go on by")
            say(f"  {to_resume}")
            return status if status >= 0 else 128 - status
        say(
            f"process {failed} ended by {why}: all start again from the last "
            f"checkpoint ({attempt + 1} of {restarts})"
        )
    raise AssertionError("the last attempt is not followed by another")


def exit_status(error: Exception) -> int:
    """Returns the exit status of a process that an error ends."""
    comes_again = not may_pass(error) or isinstance(error, FileExistsError)
    return USER_ERROR if comes_again else FAILED


def _start(command: Sequence[str], processes: int) -> list[subprocess.Popen]:
    """Starts the processes. A terminal's Ctrl-C reaches this process alone; if it ends,
    however that comes, they end with a checkpoint."""
    coordinator = f"127.0.0.1:{free_port()}"
    group = {"EMBARK_COORDINATOR": coordinator, "EMBARK_PROCESSES": str(processes)}
    return [
        subprocess.Popen(
            command,
            env={**os.environ, **group, "EMBARK_PROCESS_ID": str(number)},
            start_new_session=True,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
        for number in range(processes)
    ]


def _end_with_parent() -> None:
    """Asks Linux for SIGTERM when the parent of this process has ended."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait(running: Sequence[subprocess.Popen]) -> tuple[int, int]:
    """Waits until all have ended, or until one has failed, and ends the others.

    Returns:
      (number, exit status) of the first that failed, or of the first process.
    """
    while True:
        statuses = [process.poll() for process in running]
        failed = [number for number, status in enumerate(statuses) if status]
        if failed or None not in statuses:
            break
        time.sleep(POLL_S)
    if not failed:
        return 0, 0
    # Who ended by itself is the cause: JAX aborts those whose peer is gone.
    first = max(
        failed,
        key=lambda number: (
            statuses[number] == USER_ERROR,
            statuses[number] not in (-signal.SIGABRT, LOST),
            statuses[number] != FAILED,
        ),
    )
    deadline = time.monotonic() + GRACE_S
    while None in [process.poll() for process in running]:
        if time.monotonic() > deadline:
            for process in running:
                process.kill()
        time.sleep(POLL_S)
    status = running[first].returncode
    assert status is not None
    return first, status


def free_port() -> int:
    """Returns a port that nothing used a moment ago."""
    with socket.socket() as unused:
        unused.bind(("", 0))
        return unused.getsockname()[1]
