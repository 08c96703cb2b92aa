"""Which process of how many this is: given, found, or missing."""

import re

import pytest

from embark_jax._base.config import ConfigError
from embark_jax.launch.process_group import ProcessGroup, find_process_group
from tests.runs import assert_refused, embark, write_config

SLURM = {
    "SLURM_JOB_ID": "70001",
    "SLURM_STEP_NODELIST": "gpu[003-004,007]",
    "SLURM_NTASKS": "24",
    "SLURM_PROCID": "13",
    "SLURM_LOCALID": "5",
}
OTHERS = ("KUBERNETES_SERVICE_HOST", "OMPI_MCA_orte_hnp_uri", "TPU_SKIP_MDS_QUERY")


@pytest.fixture
def environment(monkeypatch):
    """Of a machine of which JAX knows no other processes."""
    for name in (*SLURM, *OTHERS):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_what_is_given_is_taken(environment):
    assert find_process_group("a.b:7", 2, 1) == ProcessGroup("a.b", 7, 2, 1)
    assert find_process_group("[::1]:7", 2, 1).host == "::1"


def test_slurm_is_found(environment):
    for name, value in SLURM.items():
        environment.setenv(name, value)
    found = find_process_group(None, None, None)
    assert (found.host, found.processes, found.process_id) == ("gpu003", 24, 13)
    assert find_process_group("other:7", None, None) == ProcessGroup("other", 7, 24, 13)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((None, 2, None), "--coordinator, --process-id: not given, and no cluster"),
        (("host", 2, 1), "--coordinator: is 'host', must be HOST:PORT"),
        (("host:x", 2, 1), "--coordinator: is 'host:x', must be HOST:PORT"),
        (("host:0", 2, 1), "--coordinator: port is 0, must be 1 to 65535"),
        (("host:1", 0, 0), "--processes: is 0, must be at least 1"),
        (("host:1", 2, 2), r"--process-id: is 2, must be 0 to 1 \(--processes 2\)"),
    ],
    ids=str,
)
def test_what_makes_no_process_group(environment, given, message):
    with pytest.raises(ConfigError, match=message):
        find_process_group(*given)


def test_options_of_the_command(environment, tmp_path):
    config = write_config(tmp_path)
    outcome = embark("train", config, "--distributed", "--workdir", tmp_path / "run")
    assert_refused(outcome, "--coordinator, --processes, --process-id: not given")
    for option, expected in (
        ("--process-id=0", "--process-id need --distributed"),
        ("--distributed", "--max-restarts need a --workdir"),
        ("--max-restarts=1", "--max-restarts need a --workdir"),
    ):
        outcome = embark("train", config, option)
        assert outcome.code == 2
        assert expected in re.sub(r"[│\s]+", " ", outcome.err)  # it is in a box
    assert not (tmp_path / "run").exists()
