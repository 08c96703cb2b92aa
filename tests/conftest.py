"""Eight CPU devices, strict numerics, and hypothesis without a clock."""

from __future__ import annotations

import os
from pathlib import Path

# Read when jax is imported, so set before that.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

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
