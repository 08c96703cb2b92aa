"""A process that fails, or is lost, ends the others: nothing hangs."""

import os
import signal
import subprocess
import sys
import time

import jax
import pytest

from embark_jax.launch.one_host import FAILED, LOST, USER_ERROR, free_port
from embark_jax.launch.processes import HEARTBEAT_S, ending_at_once
from tests.processes import outputs_of_two

PROCESS = """
import os, signal, sys, time
import jax
from embark_jax._base.config import ConfigError
from embark_jax.config import ExperimentConfig
from embark_jax.launch import processes
from jax.experimental import multihost_utils

port, index, end = sys.argv[1:]
data = {"kind": "synthetic"}
batch = 4 if end == "config" and index == "1" else 2
mesh = {"nodes": 1 if end == "mesh" else 2}
config = ExperimentConfig(data=data, mesh=mesh, train={"batch_size": batch})
with processes.ending_at_once(lambda error: print(type(error).__name__, error)):
    processes.join(config, f"localhost:{port}", 2, int(index))
    multihost_utils.sync_global_devices("both are there")
    print("joined", flush=True)
    if index == "1":
        if end == "error":
            raise KeyError("a bug")
        if end == "user error":
            raise ConfigError("a key")
        os.kill(os.getpid(), getattr(signal, end))
    multihost_utils.sync_global_devices("never")
"""


def outcome(end: str) -> tuple[list[int], list[str], float]:
    """Exit statuses of two processes of which the second ends in a way, what each said,
    and the seconds that the first one took to end after the second joined."""
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, port, str(index), end],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for index in range(2)
    ]
    first, second = processes
    try:
        assert second.stdout is not None
        line = ""
        while not line.endswith("joined\n") and second.poll() is None:
            line += second.stdout.readline()  # Gloo has lines of its own
        if end == "config":
            first.kill()  # would wait for the second
        begin = time.monotonic()
        first_said, _ = first.communicate(timeout=300)
        seconds = time.monotonic() - begin
        if end == "SIGSTOP":
            second.kill()
        second_said = second.stdout.read()  # communicate would lose what is buffered
        second.wait(timeout=300)
    finally:
        for process in processes:
            process.kill()
    return (
        [each.returncode for each in processes],
        [first_said, line + second_said],
        seconds,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("error", FAILED, "KeyError 'a bug'\n"),
        ("user error", USER_ERROR, "ConfigError a key\n"),
        ("SIGKILL", -signal.SIGKILL, ""),
    ],
)
def test_one_that_fails_ends_the_other_at_once(end, status, said):
    (first, second), texts, seconds = outcome(end)
    assert first != 0
    assert second == status
    assert texts[1].endswith(f"joined\n{said}")
    assert seconds < HEARTBEAT_S


def test_a_message_that_is_cut_off_says_that_another_process_is_gone(monkeypatch):
    error = jax.errors.JaxRuntimeError(
        "UNAVAILABLE: recvmsg:Connection reset by peer\nAdditional GRPC error "
        "information from remote target coordination_service while calling /xla"
    )
    statuses, shown = [], []
    monkeypatch.setattr(os, "_exit", statuses.append)
    with ending_at_once(shown.append):
        raise error
    gone = "another process is gone: UNAVAILABLE: recvmsg:Connection reset by peer"
    assert ([*map(str, shown)], statuses) == ([gone], [LOST])


@pytest.mark.slow
def test_one_that_is_lost_ends_the_other_by_the_heartbeat():
    (first, _), _, seconds = outcome("SIGSTOP")
    assert first != 0
    assert seconds < 3 * HEARTBEAT_S


@pytest.mark.slow
def test_processes_have_one_config():
    (_, second), (_, said), _ = outcome("config")
    assert second == USER_ERROR
    assert "all processes must have one config:" in said
    assert "train.batch_size" in said


@pytest.mark.slow
def test_a_mesh_that_is_too_small_is_told_once():
    statuses, said, _ = outcome("mesh")
    assert statuses == [USER_ERROR] * 2
    assert [text.count("mesh: has 1 devices") for text in said] == [1, 0]


KERNELS = """
import sys
from embark_kernels import _implementation, check
from embark_jax.config import ExperimentConfig
from embark_jax.launch import processes
from embark_jax.run.planning import why_plain_xla

port, index = sys.argv[1:]
data = {"kind": "synthetic"}
config = ExperimentConfig(data=data, mesh={"nodes": 2}, train={"batch_size": 2})
processes.join(config, f"localhost:{port}", 2, int(index))
_implementation._why_not_mosaic_gpu = lambda hopper: ""
check.problem = lambda: "sum_bags differs" if index == "1" else ""
print([why_plain_xla()])
"""


@pytest.mark.slow
def test_kernels_that_fail_in_one_process_are_taken_in_none():
    for text in outputs_of_two(KERNELS, timeout_s=300):
        assert text.strip().splitlines()[-1] == "['sum_bags differs']", text
