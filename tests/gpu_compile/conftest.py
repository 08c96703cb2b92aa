"""All tests of this folder need the compiler for GPUs."""

import importlib.util
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
HAS_COMPILER = importlib.util.find_spec("jax_cuda13_plugin") is not None
REASON = "needs the CUDA plugin: make test-gpu-compile"


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == FOLDER:
            item.add_marker(pytest.mark.gpu_compile)
            item.add_marker(pytest.mark.skipif(not HAS_COMPILER, reason=REASON))
