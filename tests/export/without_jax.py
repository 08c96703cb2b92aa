"""Scores an export in an interpreter in which an import of JAX raises."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from embark_jax.data import Batch

PROGRAM = """\
import sys

sys.modules["jax"] = sys.modules["jaxlib"] = None  # an import of them raises

import numpy as np
from embark_jax.export import load_id_scorer

samples = dict(np.load("samples.npz"))
dense = samples.pop("dense")
columns = {"ids": {}, "weights": {}}
for name, array in samples.items():
    kind, feature = name.split("/")
    columns[kind][feature] = array
np.save("logits.npy", load_id_scorer(sys.argv[1]).logits(dense, **columns))
"""


LAYERS = """\
import sys

sys.modules["jax"] = sys.modules["jaxlib"] = None

from pathlib import Path

import numpy as np
from embark_jax.export.onnx_layers import onnx_layers

for folder in Path(".").iterdir():
    inputs = dict(np.load(folder / "inputs.npz"))
    expected = inputs.pop("expected")
    dense, given = inputs.pop("dense"), {"embeddings": {}, "valid": {}}
    for name, array in inputs.items():
        kind, feature = name.split("/")
        given[kind][feature] = array
    logits = onnx_layers(folder / "model.onnx")(dense, **given)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
    print(folder)
"""


def score_without_jax(export: Path, batch: Batch, folder: Path) -> np.ndarray:
    """Returns the logits of a batch; files go to ``folder``."""
    ids = {f"ids/{name}": array for name, array in batch.ids.items()}
    weights = {f"weights/{name}": array for name, array in batch.weights.items()}
    np.savez(folder / "samples.npz", dense=batch.dense, **ids, **weights)
    command = [sys.executable, "-c", PROGRAM, export]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return np.load(folder / "logits.npy")


def compare_without_jax(folder: Path) -> list[str]:
    """Compares the graph in each folder of ``folder`` with the ``expected`` logits in
    its ``inputs.npz``, and returns the names of the folders."""
    command = [sys.executable, "-c", LAYERS]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()
