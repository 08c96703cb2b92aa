"""The launch files start what they say, as far as a machine without a cluster shows."""

import os
import subprocess
from pathlib import Path

import pytest
import typer
import yaml
from typer.core import TyperGroup

from embark_jax import cli
from embark_jax.config import reading

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "docs" / "launch"
CONFIG = ROOT / "configs" / "quickstart.yaml"
SLURM = {"SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "8"}


@pytest.fixture
def start(tmp_path):
    """Runs a launch file; returns what its ``srun`` or ``mpirun`` was given."""
    for name in ("srun", "mpirun"):
        stub = tmp_path / name
        stub.write_text(f'#!/bin/bash\nprintf "%s\\n" {name} "$@"; exit $STATUS')
        stub.chmod(0o755)

    def start(file: str, *args, **environment) -> list[str]:
        outcome = subprocess.run(
            ["bash", LAUNCH / file, *map(str, args)],
            env=os.environ
            | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "STATUS": "0"}
            | environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        return outcome.stdout.splitlines()

    return start


def understood(arguments: list[str], workdir: str) -> dict:
    """The options of ``embark train``, which must take them all and these for sure."""
    group = typer.main.get_command(cli.app)
    assert isinstance(group, TyperGroup)
    assert arguments[:2] == ["embark", "train"]
    params = group.commands["train"].make_context("train", arguments[2:]).params
    assert params["distributed"]
    assert params["resume"]
    assert params["workdir"] == workdir
    return params


def mesh(params: dict) -> tuple[int, int]:
    found = reading.load(CONFIG, params["overrides"]).mesh
    return found.nodes, found.gpus_per_node


def test_the_slurm_file_starts_a_process_a_gpu(start, tmp_path):
    workdir = tmp_path / "run"
    said = start("slurm.sbatch", CONFIG, workdir, **SLURM)
    command = said.index("embark")
    assert said[0] == "srun"
    assert f"--output={workdir}/process-%t.log" in said[:command]
    assert mesh(understood(said[command:], str(workdir))) == (2, 8)
    directives = (LAUNCH / "slurm.sbatch").read_text()
    for name, value in (("nodes", 2), ("ntasks-per-node", 8), ("gpus-per-node", 8)):
        assert f"#SBATCH --{name}={value}\n" in directives
    assert workdir.is_dir()


@pytest.mark.parametrize(("status", "starts"), [("0", 1), ("2", 1), ("3", 4)])
def test_the_slurm_file_starts_a_step_again_that_failed(
    start, tmp_path, status, starts
):
    """But for mistakes in a config, which would come again."""
    said = start("slurm.sbatch", CONFIG, tmp_path / "run", **SLURM, STATUS=status)
    assert said.count("srun") == starts


def test_the_open_mpi_file_starts_a_process_a_gpu(start, tmp_path):
    workdir = tmp_path / "run"
    said = start("mpirun.sh", CONFIG, workdir, 2, 8, "train.steps=20")
    command = said.index("embark")
    assert said[:3] == ["mpirun", "-n", "16"]
    params = understood(said[command:], str(workdir))
    assert mesh(params) == (2, 8)
    assert "train.steps=20" in params["overrides"]
    assert start("mpirun.sh", CONFIG) == [], "it says what it needs"


def test_the_jobset_starts_the_pods_of_one_job():
    documents = list(yaml.safe_load_all((LAUNCH / "jobset.yaml").read_text()))
    account, role, binding, jobset = documents
    (job,) = jobset["spec"]["replicatedJobs"]
    assert job["replicas"] == 1, "JAX numbers the pods of one job"
    pods = job["template"]["spec"]
    assert pods["completionMode"] == "Indexed"
    spec = pods["template"]["spec"]
    (container,) = spec["containers"]
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    params = understood(container["command"], "/runs/a")
    assert pods["parallelism"] == pods["completions"]
    assert mesh(params) == (pods["completions"], gpus)
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert mounted.keys() == {each["name"] for each in spec["volumes"]}
    for path in (params["config_file"], Path(params["workdir"])):
        assert path.is_relative_to(mounted["runs"])
    # What JAX asks the API server to find out who is who.
    assert spec["serviceAccountName"] == account["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "embark"}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    allowed = {
        (resource, verb)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {("pods", "list"), ("services", "list"), ("jobs", "get")} <= allowed
