"""Eight CPU devices, strict numerics, cheap compilation, hypothesis without a clock."""

import functools
import gc
import importlib.util
import os
import tempfile
from pathlib import Path
from unittest import mock

# Read when JAX and NumPy are imported, so set before that.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # more of them spin while idle

import hypothesis
import jax
import pytest

CPU_DEVICES = 8


def compile_cheaply(config) -> None:
    """In this process and in those that it starts: nothing is optimized, and one cache
    holds the programs of all. Most of the tests' time is compilation, and their
    programs are small."""
    # Programs for GPUs are examined as users get them.
    if importlib.util.find_spec("jax_cuda13_plugin") is not None:
        return
    # Unoptimized code has a multiplication and an addition in one instruction, with one
    # rounding, here and not there, as what is around them happens to be: AVX has none.
    flags = "--xla_backend_optimization_level=0 --xla_cpu_max_isa=AVX"
    flags += " --xla_cpu_parallel_codegen_split_count=1"  # one thread a worker
    # The fusion emitters take three times as long to compile. Newer versions have
    # nothing else: there the tests of an empty cache take twice the processor's time.
    if jax.version.__version_info__ < (0, 11):
        flags += " --xla_cpu_use_fusion_emitters=false"
    os.environ.setdefault("XLA_FLAGS", flags)
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:  # of the process that started this
        return
    cache = tempfile.TemporaryDirectory(prefix="compiled-", ignore_cleanup_errors=True)
    config.add_cleanup(cache.cleanup)
    for option, value in (
        ("jax_compilation_cache_dir", cache.name),
        ("jax_persistent_cache_min_compile_time_secs", 0.1),
        ("jax_persistent_cache_min_entry_size_bytes", -1),
    ):
        os.environ[option.upper()] = str(value)
        jax.config.update(option, value)


def pytest_configure(config):
    gc.disable()  # until all modules are there
    compile_cheaply(config)
    jax.config.update("jax_num_cpu_devices", CPU_DEVICES)
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    for module in ("embark_jax", "embark_kernels"):
        config.addinivalue_line("filterwarnings", rf"error:::{module}\b.*")

    # CI tries the same examples every time; elsewhere each run explores new ones.
    hypothesis.settings.register_profile("dev", deadline=None)
    hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_collection_finish():
    """Before the first test."""
    # Else the first command that runs in this process chooses how many there are.
    assert jax.device_count() == CPU_DEVICES
    # Modules stay to the end, and what a trace makes is mostly kept: to look through
    # both after every 700 new objects took a tenth of the time.
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


BRIEF = {
    "CROWDING": (0.0, 0.5),
    "ROUNDED_GROUPS": 1,
    "ROUNDINGS": 1,
    "BRANCHES": 2,
    "LEAVES": 1,
    "POWERS": (16, 256),
    "IMPROVED": 1,
    "REINSERTIONS": 1e5,
}
"""A search for plans that takes a fraction of the time, and finds most of them."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Plans are as good as users get them only where that is what is tested."""
    from embark_jax.planner.search import params

    if any(item.get_closest_marker(name) for name in ("whole_search", "slow")):
        return (yield)
    with mock.patch.multiple(params, **BRIEF):
        return (yield)


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


@pytest.fixture(scope="session")
def movielens(movielens_folder, tmp_path_factory):
    """Returns a folder of MovieLens-100k, prepared by words after its name."""
    from tests.runs import done

    @functools.cache
    def prepared(*words: str) -> Path:
        out = tmp_path_factory.mktemp("movielens") / "prepared"
        name, *others = words or ("movielens-100k",)
        given = "--raw", movielens_folder, "--out", out
        done("data", "prepare", name, *given, *others)
        return out

    return prepared


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


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    """Config, folder and output of a run of six steps, which nobody may change."""
    from tests import runs

    folder = tmp_path_factory.mktemp("trained")
    config, workdir = runs.write_config(folder), folder / "run"
    words = "train", config, *runs.OF_SHARED, "--workdir", workdir
    outcome = runs.done(*words, draws=True)
    return config, workdir, outcome.out
