"""Several processes train to what one process does, also if killed and resumed."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from embark_jax.launch.one_host import free_port
from tests import runs

CONFIG = """\
name: hosts
data: {kind: prepared, path: data}
model: {kind: dlrm, bottom: [8], top: [8, 1]}
mesh: {nodes: 2, gpus_per_node: 2}
embedding:
  dim: 8
  tables: {user_id: {cluster: rb}, item_id: {cluster: ub}, zip_code: {cluster: dp}}
dense_optimizer: {kind: adam, learning_rate: 0.003, weight_decay: 0.01}
train:
  {batch_size: 128, steps: 1000000, log_every: 10, checkpoint_every: 10}
"""


END, EVALUATED = 100, 80
"""Steps of whole runs, and the step after which they are evaluated."""


class Launcher:
    """Starts the processes of runs, which share what they compiled."""

    def __init__(self, folder: Path, data: Path):
        self.folder = folder
        self._config = runs.write_config(folder, CONFIG)
        self._data = data
        self._environment = {  # most of the time of a short run is compilation
            "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        }

    def start(self, workdir: Path, processes: int, *args) -> list[subprocess.Popen]:
        coordinator = f"localhost:{free_port()}"
        several = ("--distributed", "--coordinator", coordinator)
        several += ("--processes", str(processes), "--process-id")
        command = ("train", *self.arguments(workdir, *args))
        return [
            runs.start(
                *command,
                *((*several, str(i)) if processes > 1 else ()),
                env=os.environ | self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for i in range(processes)
        ]

    def arguments(self, workdir: Path, *args) -> list:
        return [self._config, f"data.path={self._data}", *args, "--workdir", workdir]

    def launch(self, workdir: Path, processes: int, *args) -> subprocess.Popen:
        """Starts ``embark launch``, which starts again once."""
        command = ("launch", "-n", str(processes), "--restarts", "1")
        return runs.start(
            *command,
            *self.arguments(workdir, *args),
            env=os.environ | self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def tight_plan(self) -> Path:
        """A plan whose capacities no batch fits."""
        path = self.folder / "tight.json"
        data = f"data.path={self._data}"
        runs.done("plan", self._config, data, "--out", path)
        plan = json.loads(path.read_text())
        plan["capacities"] = {
            name: max(1, most // 2) for name, most in plan["capacities"].items()
        }
        path.write_text(json.dumps(plan, indent=1))
        return path

    def finish(self, workdir: Path, processes: int, *args) -> list[str]:
        """Runs to the end; returns what each process said."""
        statuses, said = end(self.start(workdir, processes, *args))
        assert statuses == [0] * processes, said
        return said


def end(
    processes: list[subprocess.Popen], timeout_s=500
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


def children_of(process: subprocess.Popen) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(child) for child in children.read_text().split()]


def wait_for_step(workdir: Path, step: int, processes: list[subprocess.Popen]) -> None:
    """Until it is logged."""
    while not (
        (workdir / "metrics.jsonl").exists()
        and max(runs.losses(workdir), default=0) >= step
    ):
        assert all(process.poll() is None for process in processes), end(processes)
        time.sleep(0.01)


@pytest.fixture(scope="module")
def launcher(tmp_path_factory, movielens):
    return Launcher(tmp_path_factory.mktemp("launch"), movielens())


@pytest.fixture(scope="module")
def undisturbed(launcher):
    """Workdir of a run of one process."""
    workdir = launcher.folder / "undisturbed"
    evaluate = f"train.eval_every={EVALUATED}"
    launcher.finish(workdir, 1, f"train.steps={END}", evaluate)
    return workdir


@pytest.mark.slow
def test_as_one_process_whatever_happens(tmp_path, launcher, undisturbed):
    """Two, one killed, both started again and stopped; then four; then one.

    The dense model lies on the devices in another way each time.
    """
    workdir, plan = tmp_path / "run", launcher.tight_plan()

    processes = launcher.start(workdir, 2, "train.dense=zero1")
    wait_for_step(workdir, 20, processes)
    processes[1].kill()
    statuses, said = end(processes)
    assert statuses[0] not in (0, None), said
    processes = launcher.start(workdir, 2, "train.dense=zero1", "--resume")
    wait_for_step(workdir, 30, processes)
    processes[1].terminate()
    statuses, said = end(processes)
    assert statuses == [0, 0], said
    stopped = max(runs.losses(workdir))
    assert f"stopped at step {stopped:,} of 1,000,000, with a checkpoint" in said[0]
    assert not any("final" in each for each in runs.records(workdir))

    assert stopped < EVALUATED
    args = ("--resume", "--plan", plan, f"train.steps={EVALUATED}")
    more = ("train.dense=tensor", f"train.eval_every={EVALUATED}")
    said = launcher.finish(workdir, 4, *args, *more)
    assert f"resumed at step {stopped} of {EVALUATED}\n" in said[0]
    assert [text.count(f"step {EVALUATED}: loss") for text in said] == [1, 0, 0, 0]
    assert runs.final(workdir)["recompilations"] > 0
    assert (workdir / "plan.json").read_text() == plan.read_text()

    (said,) = launcher.finish(workdir, 1, "--resume", f"train.steps={END}")
    assert f"resumed at step {EVALUATED} of {END}\n" in said
    assert len(list((workdir / "tensorboard").iterdir())) == 4, "one a start"

    losses = runs.losses(workdir)
    for step, loss in runs.losses(undisturbed).items():
        # What is logged is a mean since the last log, or since the run was resumed.
        if not stopped < step < stopped + 10:
            assert losses[step] == pytest.approx(loss, rel=1e-4)
    found, expected = metrics(workdir), metrics(undisturbed)
    assert found.keys() == expected.keys() == {(EVALUATED, "validation"), (END, "test")}
    for when, values in expected.items():
        # Equal but for the order of sums.
        assert found[when] == pytest.approx(values, rel=1e-4)


def metrics(workdir: Path) -> dict[tuple[int, str], list[float]]:
    """Log loss, calibration and AUC, by step and part of the data."""
    return {
        (record["step"], part): [
            record[f"{part}_{name}"] for name in ("log_loss", "calibration", "auc")
        ]
        for record in runs.records(workdir)
        for part in ("validation", "test")
        if f"{part}_auc" in record
    }


@pytest.mark.slow
def test_cached_tables_whatever_happens(launcher, tmp_path):
    """Two processes, one killed while tables grow and start again, then stopped; one
    process with half of the devices; and two again, as one process alone."""
    growing = (
        "embedding.tables.user_id={cluster: rb, slots: 100, max_slots: 600, "
        "evicted: disk, optimizer: {kind: adam, learning_rate: 0.05}}",
        "embedding.tables.item_id={cluster: ub, tier: host, slots: 300}",
        "embedding.tables.zip_code={cluster: rb, tier: disk, slots: 200}",
        "train.checkpoint_every=5",
        "train.log_every=1",
    )
    workdir, one = tmp_path / "run", tmp_path / "one"
    process = launcher.launch(workdir, 2, *growing)
    wait_for_step(workdir, 7, [process])
    os.kill(children_of(process)[1], signal.SIGKILL)
    wait_for_step(workdir, 12, [process])
    process.terminate()
    statuses, said = end([process])
    assert statuses == [0], said
    assert "all start again from the last checkpoint (1 of 1)" in said[0]
    stopped = max(runs.losses(workdir))
    assert stopped < 300, "the table was to go on growing"
    last = stopped + 20
    fewer = "mesh={nodes: 1, gpus_per_node: 2}", f"train.steps={stopped + 10}"
    launcher.finish(workdir, 1, *growing, *fewer, "--resume")
    launcher.finish(workdir, 2, *growing, f"train.steps={last}", "--resume")
    launcher.finish(one, 1, *growing, f"train.steps={last}")
    assert runs.losses(workdir) == pytest.approx(runs.losses(one), rel=1e-4)
    found, expected = (runs.final(each)["test_log_loss"] for each in (workdir, one))
    assert found == pytest.approx(expected, rel=1e-4)
