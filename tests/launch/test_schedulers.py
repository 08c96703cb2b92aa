"""A real Slurm and a real Ray start two processes, and start them again.

Slurm: ``apt-get install slurm-wlm munge``, as root. Ray: ``pip install 'ray[train]'``.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from embark_jax.launch.one_host import free_port
from tests import runs

LAUNCH = Path(__file__).parents[2] / "docs" / "launch"
SECONDS = 900
"""On a busy machine, where Ray takes minutes to start."""
SLURM_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={controller}
SlurmdPort={node}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=4
PartitionName=all Nodes=ALL Default=YES State=UP
"""
DAEMONS = ("munged", "slurmctld", "slurmd")


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> Iterator[None]:
    """A cluster of one node."""
    if missing := [name for name in DAEMONS if shutil.which(name) is None]:
        pytest.skip(f"{', '.join(missing)} not installed: apt-get install slurm-wlm")
    folder = tmp_path / "slurm"
    folder.mkdir(mode=0o755)
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o400)
    (folder / "slurm.conf").write_text(
        SLURM_CONF.format(
            host=socket.gethostname().partition(".")[0],
            folder=folder,
            controller=free_port(),
            node=free_port(),
        )
    )
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    files = {"key": "key", "socket": "munge.socket", "pid": "munged.pid"}
    names = {"key": "key-file", "socket": "socket", "pid": "pid-file"}
    options = [f"--{names[name]}={folder / file}" for name, file in files.items()]
    options += [f"--log-file={folder}/munged.log", f"--seed-file={folder}/seed"]
    try:
        subprocess.run(["munged", "--force", *options], check=True)
        subprocess.run(["slurmctld"], check=True)
        subprocess.run(["slurmd"], check=True)
        yield
    finally:
        for name in reversed(DAEMONS):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((folder / f"{name}.pid").read_text()), signal.SIGTERM)


@pytest.fixture
def config(tmp_path, monkeypatch) -> Path:
    """An experiment for two devices, and the environment of its processes."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    mesh = "mesh: {nodes: 1, gpus_per_node: 2}"
    text = runs.CONFIG.replace("mesh: {nodes: 2, gpus_per_node: 4}", mesh)
    return runs.write_config(tmp_path, text)


def wait_for_step(workdir: Path, step: int, process: subprocess.Popen) -> None:
    end = time.monotonic() + SECONDS
    while not (workdir / "metrics.jsonl").exists() or step > max(
        runs.losses(workdir), default=0
    ):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)


def kill_one(command: str, number: int) -> None:
    """Kills the process of this number, counted by age, whose command has a text."""
    found = subprocess.run(
        ["pgrep", "-f", command], stdout=subprocess.PIPE, text=True, check=True
    )
    pids = sorted(int(pid) for pid in found.stdout.split() if int(pid) != os.getpid())
    os.kill(pids[number], signal.SIGKILL)


@pytest.mark.slow
def test_slurm_starts_a_step_again(slurm, config, tmp_path):
    workdir = tmp_path / "run"
    options = "--nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --gpus-per-node=0 --wait"
    options += f" --output={tmp_path}/job.log {LAUNCH / 'slurm.sbatch'}"
    train = [str(config), str(workdir), "train.steps=4000"]
    job = subprocess.Popen(["sbatch", *options.split(), *train])
    wait_for_step(workdir, 4, job)
    kill_one(f"embark train {config}", -1)
    wait_for_step(workdir, 20, job)
    (name,) = subprocess.check_output(
        ["squeue", "--noheader", "--format=%A"], text=True
    ).split()
    subprocess.run(["scancel", "--signal=TERM", name], check=True)
    assert job.wait(SECONDS) == 0
    log = (tmp_path / "job.log").read_text()
    said = (workdir / "process-0.log").read_text()
    assert "attempt 1 ended with status" in log
    assert "resumed at step" in said
    assert "with a checkpoint to --resume from" in said


@pytest.mark.slow
def test_ray_starts_workers_again(config, tmp_path):
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'ray[train]'")
    workdir = tmp_path / "run"
    arguments = [config, workdir, "train.steps=400", "--workers", "2"]
    log = tmp_path / "log"  # no pipe, which Ray would fill
    command = [sys.executable, LAUNCH / "ray_train.py", *map(str, arguments)]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    wait_for_step(workdir, 4, process)
    kill_one("ray::.*RayTrainWorker", -1)
    assert process.wait(SECONDS) == 0, log.read_text()
    said = log.read_text()
    assert runs.final(workdir)["step"] == 400
    assert "resumed at step" in said
