"""Processes of one machine start together, end together, and start again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SECONDS = 60
LAUNCH = """
import sys
from embark_jax.launch import one_host

command = [sys.executable, "-c", sys.argv[1]]
one_host.GRACE_S = 0.5
say = lambda text: print("says", text)
sys.exit(one_host.run(command, 2, int(sys.argv[2]), say, "GO ON"))
"""
BEGIN = """
import os, pathlib, signal, sys, time

number = os.environ["EMBARK_PROCESS_ID"]
again = "--resume" in sys.argv
with open("began", "a") as file:
    file.write(f"{number} of {os.environ['EMBARK_PROCESSES']}, {again=}\\n")
"""


@pytest.fixture
def launch(tmp_path):
    """Starts two processes of a program; they run in a folder of their own."""
    started = []

    def launch(program: str, restarts: int = 0) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, BEGIN + program, str(restarts)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield launch
    for process in started:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen) -> tuple[int, str]:
    said, _ = process.communicate(timeout=SECONDS)
    return process.returncode, said


def began(folder: Path) -> list[str]:
    """What the processes wrote when they began."""
    return sorted((folder / "began").read_text().splitlines())


def wait_for(name: str, folder: Path) -> None:
    """Waits until both processes have made their files of this name."""
    end = time.monotonic() + SECONDS
    while len(list(folder.glob(f"{name}*"))) < 2:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_one_that_is_killed_ends_the_others_and_all_start_again(launch, tmp_path):
    program = """
if number == "1" and not again: os.kill(os.getpid(), signal.SIGKILL)
while not again: time.sleep(0.05)
"""
    status, said = ended(launch(program, restarts=1))
    assert status == 0
    assert said == (
        "says process 1 ended by SIGKILL (as the system does where memory runs out): "
        "all start again from the last checkpoint (1 of 1)\n"
    )
    assert began(tmp_path)[1::2] == ["0 of 2, again=True", "1 of 2, again=True"]


@pytest.mark.parametrize(
    ("status", "starts"), [(0, 1), (7, 3), pytest.param(2, 1, id="would come again")]
)
def test_a_run_ends_with_the_status_of_its_processes(launch, tmp_path, status, starts):
    found, said = ended(launch(f"sys.exit({status})", restarts=2))
    assert found == status
    ends = "ended by exit status 7"
    assert said.count(f"{ends}: all start again") == starts - 1
    assert said.count(f"{ends}, and the run with it; go on by\nsays   GO ON") == (
        status == 7
    )
    assert began(tmp_path)[::starts] == ["0 of 2, again=False", "1 of 2, again=False"]
    assert len(began(tmp_path)) == 2 * starts


@pytest.mark.parametrize("lost", [1, 3, -signal.SIGABRT])
def test_the_process_that_died_is_named_and_its_signal(launch, lost):
    """Not one that has failed because of it, though that has a smaller number."""
    program = f"""
if number == "1": os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.3)
if {lost} < 0: os.kill(os.getpid(), -{lost})
sys.exit({lost})
"""
    status, said = ended(launch(program))
    assert status == 128 + signal.SIGKILL
    assert said.startswith("says process 1 ended by SIGKILL (as the system")
    assert said.endswith("and the run with it; go on by\nsays   GO ON\n")


def test_sigterm_is_passed_on(launch, tmp_path):
    program = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
pathlib.Path(f"ready{number}").touch()
while True: time.sleep(0.05)
"""
    process = launch(program, restarts=1)
    wait_for("ready", tmp_path)
    process.terminate()
    assert ended(process) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's prctl")
def test_a_parent_that_is_killed_ends_its_processes_with_a_checkpoint(launch, tmp_path):
    program = """
def end(*_):
    pathlib.Path(f"told{number}").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
pathlib.Path(f"ready{number}").touch()
while True: time.sleep(0.05)
"""
    process = launch(program)
    wait_for("ready", tmp_path)
    process.kill()
    wait_for("told", tmp_path)


def test_a_second_ctrl_c_ends_at_once(launch, tmp_path):
    program = """
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(f"told{number}").touch())
pathlib.Path(f"ready{number}").touch()
while True: time.sleep(0.05)
"""
    process = launch(program, restarts=1)
    for name in ("ready", "told"):
        wait_for(name, tmp_path)
        process.send_signal(signal.SIGINT)
    assert ended(process) == (128 + signal.SIGKILL, "")
