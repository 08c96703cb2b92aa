"""Eight CPU devices, strict numerics, cheap compilation, hypothesis without a clock."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

# JAX reads all these when it is imported; processes that tests start inherit them.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # idle threads spin

# Most of the tests' time is compilation, and most programs are small: optimizing them
# costs several times what it saves. Programs for GPUs are examined as users get them.
GPU_COMPILER = importlib.util.find_spec("jax_cuda13_plugin") is not None
if not GPU_COMPILER:
    flags = "--xla_backend_optimization_level=0"
    if importlib.metadata.version("jaxlib").startswith("0.10."):  # has it no more
        flags += " --xla_cpu_use_fusion_emitters=false"
    os.environ.setdefault("XLA_FLAGS", flags)

# One cache of compiled programs for all processes of one session of tests.
CACHE = None
if not GPU_COMPILER and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    CACHE = tempfile.mkdtemp(prefix="compiled-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = CACHE
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import hypothesis
import jax
import pytest

CPU_DEVICES = 8


def pytest_configure(config):
    jax.config.update("jax_num_cpu_devices", CPU_DEVICES)
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    for module in ("embark_jax", "embark_kernels"):
        config.addinivalue_line("filterwarnings", rf"error:::{module}\b.*")

    # CI tries the same examples every time; elsewhere each run explores new ones.
    hypothesis.settings.register_profile("dev", deadline=None)
    hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_unconfigure():
    if CACHE is not None:
        shutil.rmtree(CACHE, ignore_errors=True)


@pytest.fixture(scope="session")
def movielens_folder(tmp_path_factory):
    """Folder of the real MovieLens-100k: the cache, or else a new download."""
    from embark_jax import data  # not before pytest_configure has set JAX up

    if (data.movielens_100k_folder() / "ml-100k.inter").exists():
        return data.movielens_100k_folder()
    try:
        return data.fetch_movielens_100k(tmp_path_factory.mktemp("data") / "ml-100k")
    except data.DataError as error:
        pytest.skip(f"MovieLens-100k is not in the cache, and {error}")


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a file into the working directory and returns its name."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> str:
        path = Path(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
        return name

    return write
