"""Several processes train to what one process does, also when some are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from embark_jax.launch.cluster import free_port
from tests import runs

CONFIG = """\
name: hosts
data: {kind: movielens_100k}
model: {kind: dlrm, bottom: [8], top: [8, 1]}
mesh: {nodes: 2, gpus_per_node: 2}
embedding:
  dim: 8
  capacity_slack: 0.3
  tables: {user: {cluster: rb}, item: {cluster: ub}, zip_code: {cluster: dp}}
train:
  {batch_size: 64, steps: 600, log_every: 20, eval_every: 60, checkpoint_every: 60}
"""


class Launcher:
    """Starts the processes of runs, which share what they compiled."""

    def __init__(self, folder: Path, data: Path):
        self.folder = folder
        self._config = runs.write_config(folder, CONFIG)
        self._data = data

    def start(self, workdir: Path, processes: int, *args) -> list[subprocess.Popen]:
        coordinator = f"localhost:{free_port()}"
        command = ("train", self._config, f"data.path={self._data}", *args)
        command += ("--workdir", workdir)
        several = ("--distributed", "--coordinator", coordinator)
        several += ("--processes", str(processes), "--process-id")
        return [
            runs.start(
                *(*command, *((*several, str(i)) if processes > 1 else ())),
                env=os.environ
                | {
                    "JAX_COMPILATION_CACHE_DIR": str(self.folder / "compiled"),
                    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for i in range(processes)
        ]

    def finish(self, workdir: Path, processes: int, *args) -> list[str]:
        """Runs to the end; returns what each process said."""
        statuses, said = end(self.start(workdir, processes, *args))
        assert statuses == [0] * processes, said
        return said


def end(
    processes: list[subprocess.Popen], timeout_s=300
) -> tuple[list[int], list[str]]:
    deadline = time.monotonic() + timeout_s
    try:
        said = [
            p.communicate(timeout=deadline - time.monotonic())[0] for p in processes
        ]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], said


def worker_of(supervisor: subprocess.Popen) -> int:
    children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children")
    (child,) = map(int, children.read_text().split())
    return child


def wait_for_step(workdir: Path, step: int, processes: list[subprocess.Popen]) -> None:
    """Until it is logged."""
    while not (
        (workdir / "metrics.jsonl").exists()
        and max(runs.losses(workdir), default=0) >= step
    ):
        assert all(process.poll() is None for process in processes), end(processes)
        time.sleep(0.01)


@pytest.fixture(scope="module")
def launcher(tmp_path_factory, movielens_folder):
    return Launcher(tmp_path_factory.mktemp("hosts"), movielens_folder)


@pytest.fixture(scope="module")
def alone(launcher):
    """Workdir of a run of one process, with as many devices as the others."""
    workdir = launcher.folder / "alone"
    launcher.finish(workdir, 1)
    return workdir


def assert_close(found: dict, expected: dict) -> None:
    """Records of the same step are equal, but for the order of sums."""
    for name in ("test_log_loss", "test_calibration", "test_auc"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4)


def test_four_processes_train_as_one_does(launcher, alone, tmp_path):
    workdir = tmp_path / "run"
    said = launcher.finish(workdir, 4, "train.steps=60")
    losses = {step: loss for step, loss in runs.losses(alone).items() if step <= 60}
    assert runs.losses(workdir) == pytest.approx(losses, rel=1e-5)
    evaluations = (each for each in runs.records(alone) if "test_auc" in each)
    assert_close(runs.final(workdir), next(evaluations))
    assert runs.final(workdir)["recompilations"] > 0, "make the capacities smaller"
    assert (workdir / "plan.json").read_text() == (alone / "plan.json").read_text()
    assert len(list((workdir / "tensorboard").iterdir())) == 1
    assert [text.count("step 60: loss") for text in said] == [1, 0, 0, 0]


def test_two_then_four_killed_and_stopped_then_one(launcher, alone, tmp_path):
    workdir = tmp_path / "run"
    launcher.finish(workdir, 2, "train.steps=60")

    processes = launcher.start(workdir, 4, "--resume", "--max-restarts", "1")
    wait_for_step(workdir, 80, processes)
    os.kill(worker_of(processes[2]), signal.SIGKILL)
    wait_for_step(workdir, 140, processes)
    processes[1].terminate()
    statuses, said = end(processes)
    assert statuses == [0] * 4, said
    for text in said:
        assert "process 2 was killed by SIGKILL; starting again from the last" in text
    stopped = max(runs.losses(workdir))
    assert f"stopped by SIGTERM at step {stopped}\n" in said[0]
    assert 140 <= stopped < 600
    assert not any("final" in each for each in runs.records(workdir))

    (said,) = launcher.finish(workdir, 1, "--resume")
    assert f"resumed at step {stopped} of 600\n" in said
    losses = runs.losses(workdir)
    for step, loss in runs.losses(alone).items():
        # The windows of the logs differ where the run was stopped.
        if not stopped < step <= stopped + 20:
            assert losses[step] == pytest.approx(loss, rel=1e-4)
    assert_close(runs.final(workdir), runs.final(alone))
