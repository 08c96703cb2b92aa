"""A new source of data needs its file, its section and one line of the registry.
Commands, help, messages and plans follow."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import embark_jax

PACKAGE = Path(embark_jax.__file__).parent
SECTION = '''\
class CountingConfig(Config):
    """Samples that are counted."""

    kind: Literal["counting"] = "counting"
    samples: PositiveInt = 8
    """Samples of an epoch."""


SOURCES: dict[type[Config], str] = {
    CountingConfig: "embark_jax.data.counting:CountingSource",
'''
FILE = """\
import numpy as np

from embark_jax.data.batch import Batch
from embark_jax.data.source import Description
from embark_jax.plans.tables import FeatureSpec


class Counting:
    table_rows, features, dense_features = {"n": 10}, (FeatureSpec("n"),), 0

    def __init__(self, samples):
        self.train_samples = samples

    def train_batch(self, step, batch_size):
        ids = (step * batch_size + np.arange(batch_size)) % 10
        labels = (ids % 2).astype(np.float32)
        return Batch(np.zeros((batch_size, 0), np.float32), {"n": ids[:, None]}, labels)


class CountingSource:
    def __init__(self, section, embedding):
        self._samples = section.samples

    def open(self, seed):
        dataset = Counting(self._samples)
        return dataset, Description.of(dataset, order={"samples": self._samples})

    def absent(self):
        return None
"""


@pytest.fixture
def embark(tmp_path):
    """Runs commands of a package to which the source was added."""
    copy = shutil.copytree(PACKAGE, tmp_path / "embark_jax", symlinks=True)
    (copy / "data" / "counting.py").write_text(FILE)
    registry, line = copy / "config" / "data.py", SECTION.splitlines(True)[-2]
    text = registry.read_text()
    assert text.count(line) == 1
    registry.write_text(text.replace(line, SECTION))
    path = os.pathsep.join([str(tmp_path), str(PACKAGE.parent / "kernels")])

    def run(*arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-c", "from embark_jax.cli import main; main()"]
        return subprocess.run(
            [*command, *arguments],
            env={**os.environ, "PYTHONPATH": path, "COLUMNS": "500"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_a_source_needs_its_file_and_one_line(embark, tmp_path):
    (tmp_path / "a.yaml").write_text(
        "data: {kind: counting, samples: 30}\ntrain: {batch_size: 8}\n"
    )
    shown = embark("data", "stats", "a.yaml")
    assert shown.returncode == 0, shown.stderr
    assert "Bags of 24 samples" in shown.stdout
    unknown = embark("data", "stats", "a.yaml", "data.kind=countng")
    assert "kind is 'counting' or 'synthetic' or" in unknown.stderr
