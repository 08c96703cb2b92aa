"""Flags of XLA, memory on CPU, and the folder of compiled programs."""

import os
import stat
from pathlib import Path

import jax
import pytest

from embark_jax import cli
from embark_jax._base import devices
from embark_jax.cli import jax_setup
from embark_jax.cli.jax_setup import program_folder, set_up_jax, xla_flags

SCHEDULER = "--xla_gpu_enable_latency_hiding_scheduler"


@pytest.fixture
def home(monkeypatch, tmp_path):
    """Of a user who has set nothing, without a GPU."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(jax_setup, "has_gpu", lambda: False)
    monkeypatch.setattr(jax_setup, "keep_freed_memory", lambda: None)
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", f"{SCHEDULER}=true"),
        ("--xla_dump_to=x", f"--xla_dump_to=x {SCHEDULER}=true"),
        (f"{SCHEDULER}=false", f"{SCHEDULER}=false"),
    ],
)
def test_flags_of_the_user_stay(monkeypatch, given, expected):
    monkeypatch.setenv("XLA_FLAGS", given)
    assert xla_flags() == expected


@pytest.mark.parametrize(
    ("platforms", "device", "gpu"),
    [
        (None, None, False),
        (None, "nvidia0", True),
        (None, "kfd", True),
        (None, "nvidiactl", False),
        ("cpu", "nvidia0", False),
        ("cuda,cpu", None, True),
    ],
)
def test_flags_are_for_gpus_and_freed_memory_is_kept_without(
    home, monkeypatch, tmp_path, platforms, device, gpu
):
    monkeypatch.setattr(jax_setup, "has_gpu", devices.has_gpu)
    monkeypatch.setattr(devices, "DEVICES", tmp_path)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setenv("XLA_FLAGS", "")
    if platforms is not None:
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
    if device is not None:
        (tmp_path / device).touch()
    kept = []
    monkeypatch.setattr(jax_setup, "keep_freed_memory", lambda: kept.append(True))
    set_up_jax(pytest.fail)
    assert bool(kept) is not gpu
    assert os.environ["XLA_FLAGS"] == (f"{SCHEDULER}=true" if gpu else "")


def test_programs_are_kept_in_a_folder_that_is_private(home):
    set_up_jax(pytest.fail)
    folder = Path(jax.config.jax_compilation_cache_dir)
    assert folder == program_folder()
    assert home in folder.parents
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_not_in_a_folder_that_others_can_write_to(home):
    program_folder().mkdir(parents=True)
    program_folder().chmod(0o777)
    said = []
    set_up_jax(said.append)
    assert jax.config.jax_compilation_cache_dir is None
    assert said == [
        "warning: compiled programs are not cached in "
        f"{program_folder()}: others can write to it"
    ]


def test_a_folder_of_the_user_stays(home):
    mine = str(home / "mine")
    jax.config.update("jax_compilation_cache_dir", mine)
    set_up_jax(pytest.fail)
    assert jax.config.jax_compilation_cache_dir == mine


def test_other_cpus_have_other_folders(home, monkeypatch, tmp_path):
    folders = set()
    for flags in ("fma avx2", "fma avx2 avx512f"):
        info = tmp_path / "cpuinfo"
        info.write_text(f"processor : 0\nflags : {flags}\n")
        monkeypatch.setattr(jax_setup, "CPU_INFO", info)
        folders.add(program_folder())
    assert len(folders) == 2


@pytest.mark.parametrize("device", [None, "nvidia0"])
def test_cudnn_is_missed_only_where_there_is_a_gpu(monkeypatch, tmp_path, device):
    monkeypatch.setattr(devices, "DEVICES", tmp_path)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setenv("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "")
    if device is not None:
        (tmp_path / device).touch()
    cli.options()
    skips = os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"]
    assert skips == ("1" if device is None else "")
