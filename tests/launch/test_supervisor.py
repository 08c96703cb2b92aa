"""Supervisors of small programs: all end together, know why, and start again."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from embark_jax.launch.process_group import free_port

SUPERVISE = """
import sys
from embark_jax.launch.process_group import ProcessGroup
from embark_jax.launch.supervisor import Supervisor

port, processes, process_id, restarts, run, token, program = sys.argv[1:]
group = ProcessGroup("localhost", int(port), int(processes), int(process_id))
command = [sys.executable, "-c", program]
say = lambda text: print("says:", text, flush=True)
supervisor = Supervisor(group, run, token.encode(), command, int(restarts), say)
sys.exit(supervisor.supervise())
"""
WORK = """
import os, signal, sys, time
from embark_jax.launch.worker import Worker
worker = Worker.of_this_process()
me, again = worker.options.process_id, worker.options.resume
print("works", os.getpid(), "again" if again else "anew", flush=True)
"""
FOREVER = WORK + "time.sleep(1000)"
ENDS_AT_SIGTERM = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
time.sleep(1000)
"""
TOKEN = "the secret of the run"
SECONDS = 30
"""That everything must have ended in, whatever happens."""


class Run:
    """Supervisors of one run, and what they said."""

    def __init__(
        self, folder: Path, program: str, processes: int = 2, restarts: int = 0
    ):
        self._folder = folder
        self.port = free_port()
        self._program, self._restarts = program, restarts
        self._size = processes
        self.processes = [self.start(i) for i in range(processes)]

    def start(
        self, i: int, run: str = "run", size: int | None = None, token: str = TOKEN
    ):
        size, port = size or self._size, self.port
        args = (port, size, i, self._restarts, run, token, self._program)
        return subprocess.Popen(
            [sys.executable, "-c", SUPERVISE, *map(str, args)],
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def pids_of_workers(self) -> list[int]:
        """Waits for all to work."""
        return [int(process.stdout.readline().split()[1]) for process in self.processes]

    def end(self) -> tuple[list[int], list[str]]:
        """Exit statuses, and what was said, since it was last read."""
        deadline = time.monotonic() + SECONDS
        said = [
            p.communicate(timeout=deadline - time.monotonic())[0]
            for p in self.processes
        ]
        return [process.returncode for process in self.processes], said


@pytest.fixture
def run(tmp_path):
    """Starts runs; none of their processes outlives the test."""
    runs: list[Run] = []

    def start(*args, **options) -> Run:
        runs.append(Run(tmp_path, *args, **options))
        return runs[-1]

    yield start
    for process in [process for each in runs for process in each.processes]:
        process.kill()
        process.wait()
        process.stdout.close()


def gone(pid: int) -> bool:
    """Whether a process ends within a few seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            if (
                Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                == "Z"
            ):
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.01)
    return False


def test_all_end_well(run):
    statuses, said = run(WORK, processes=3).end()
    assert statuses == [0, 0, 0]
    assert all(text.endswith("anew\n") and "says" not in text for text in said)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_process_ends_all(run, victim):
    started = run(FOREVER, processes=3)
    pids = started.pids_of_workers()
    os.kill(pids[victim], signal.SIGKILL)
    statuses, said = started.end()
    assert statuses == [1, 1, 1]
    assert said == [f"says: ended: process {victim} was killed by SIGKILL\n"] * 3
    assert all(map(gone, pids))


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_supervisor_ends_all(run, victim):
    started = run(FOREVER)
    pids = started.pids_of_workers()
    started.processes[victim].kill()
    statuses, said = started.end()
    assert (statuses[victim], statuses[1 - victim]) == (-signal.SIGKILL, 1)
    assert f"says: ended: process {victim} is lost" in said[1 - victim]
    assert all(map(gone, pids))


def test_the_cause_is_told_where_a_symptom_came_first(run):
    started = run(
        WORK
        + """
import jax
with worker.reporting(print, final=()):
    if me == 0:
        while not os.path.exists("ready"):
            time.sleep(0.01)
        raise jax.errors.JaxRuntimeError("connection closed by peer")
    open("ready", "w").close()
    time.sleep(0.5)
    raise KeyError("the cause")
"""
    )
    statuses, said = started.end()
    assert statuses == [1, 1]
    for text in said:
        assert "says: ended: process 1: KeyError: 'the cause'" in text


def test_all_start_again(run):
    started = run(
        WORK + "again or me or sys.exit(3)\nagain or time.sleep(1000)", restarts=1
    )
    statuses, said = started.end()
    assert statuses == [0, 0]
    why = (
        "says: process 0 ended with exit status 3; starting again from the last "
        "checkpoint (1 of 1)\n"
    )
    for text in said:
        assert why in text
        assert text.endswith("again\n")


def test_restarts_come_to_an_end(run):
    statuses, said = run(WORK + "sys.exit(me)", restarts=2).end()
    assert statuses == [1, 1]
    assert said[1].count("works") == 3
    for text in said:
        assert text.count("starting again") == 2
        assert text.endswith("says: ended: process 1 ended with exit status 1\n")


def test_what_a_restart_cannot_mend_ends_the_run(run):
    program = """
with worker.reporting(print, final=(ValueError,)):
    raise ValueError("bad config")
"""
    statuses, said = run(WORK + program, restarts=2).end()
    assert statuses == [1, 1]
    for text in said:
        assert text.count("works") <= 1  # one may be ended before it has begun
        assert "ValueError: bad config" in text


def test_an_error_of_a_thread_that_reads_data_ends_all(run):
    imports = """
import itertools
from embark_jax.data.pipeline import prefetch
"""
    program = """
def make_batch(step):
    if (me, step) == (1, 3):
        raise ValueError("sample 7 is damaged")
    time.sleep(0.01)

with worker.reporting(print, final=(ValueError,)):
    for _ in prefetch(make_batch, itertools.count()):
        pass
"""
    started = run(imports + WORK + program, restarts=2)
    started.pids_of_workers()
    statuses, said = started.end()
    assert statuses == [1, 1]
    for text in said:
        assert text.endswith("ended: process 1: ValueError: sample 7 is damaged\n")


def test_a_lost_supervisor_may_come_back(run):
    started = run(WORK + "again or time.sleep(1000)", restarts=1)
    started.pids_of_workers()
    started.processes[1].kill()
    started.processes[1].communicate()
    started.processes[1] = started.start(1)
    statuses, said = started.end()
    assert statuses == [0, 0]
    assert all(text.endswith("again\n") for text in said)


def test_sigterm_is_passed_on(run):
    started = run(WORK + "time.sleep(1)" + ENDS_AT_SIGTERM)
    started.pids_of_workers()
    for process in started.processes:  # before they can handle it
        process.send_signal(signal.SIGTERM)
    statuses, _ = started.end()
    assert statuses == [0, 0]


def test_ctrl_c_is_passed_on_as_sigterm(run):
    started = run(WORK + "time.sleep(0.5)" + ENDS_AT_SIGTERM)
    pids = started.pids_of_workers()
    for pid in pids:  # a terminal sends it to them too
        os.kill(pid, signal.SIGINT)
    for process in started.processes:
        process.send_signal(signal.SIGINT)
    statuses, said = started.end()
    assert statuses == [0, 0]
    assert all("Ctrl-C: all processes end after the same step" in text for text in said)


def test_a_second_ctrl_c_ends_at_once(run):
    started = run(FOREVER)
    pids = started.pids_of_workers()
    first = started.processes[0]
    first.send_signal(signal.SIGINT)
    assert first.stdout.readline().startswith("Ctrl-C: all processes end")
    first.send_signal(signal.SIGINT)
    statuses, _ = started.end()
    assert statuses == [130, 1]
    assert all(map(gone, pids))


def test_strangers_are_sent_away(run):
    started = run(FOREVER)
    started.pids_of_workers()
    for stranger, why in (
        (started.start(1, run="other"), "ended: run other of 2 processes came to the"),
        (started.start(1, size=3), "ended: run run of 3 processes came to the coord"),
        (started.start(1), "ended: process id 1 was given to two processes"),
        (started.start(1, token="another secret"), "another token: all processes must"),
    ):
        started.processes.append(stranger)
        out, _ = stranger.communicate(timeout=SECONDS)
        assert stranger.returncode == 1
        assert why in out
    assert started.processes[0].poll() is started.processes[1].poll() is None


def test_one_process_listens_to_its_machine_alone_and_takes_its_port(run):
    started = run(FOREVER, processes=1)
    started.pids_of_workers()
    with socket.create_server(("127.0.0.2", started.port)):
        pass  # "" would have this address, too
    other = started.start(0)
    started.processes.append(other)
    assert "address already in use" in other.communicate(timeout=SECONDS)[0].lower()
    assert other.returncode == 1
