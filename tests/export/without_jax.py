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
