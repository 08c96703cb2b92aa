"""A new row optimizer needs one file of the code, which configs, plans, help and public
names read; and its formula in the oracle, which is code of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import embark_kernels.optimizers
import pytest

KERNELS = Path(embark_kernels.optimizers.__file__).parent
RULE = '''\
@dataclasses.dataclass(frozen=True)
class Sign(RowOptimizer):
    """``row -= learning_rate * sign(gradient)``, unless it is small."""

    least: Annotated[float, Ge(0), Doc("Smallest gradient that counts.")] = 0.25

    def state_widths(self, width):
        return {"counts": width, "last": 1}

    def rule(self, row, states, gradient, mean_square, rate, factors, math):
        sign = math.where(gradient > 0, 1.0, -1.0)
        sign = math.where(gradient * gradient > self.least**2, sign, 0.0)
        counts = states["counts"] + sign * sign
        return rate * sign, {"counts": counts, "last": states["last"]}


'''
CONFIG = """\
data: {kind: synthetic, dense_features: 2, train_samples: 64, test_samples: 32}
model: {kind: dlrm, bottom: [4], top: [1]}
embedding:
  dim: 4
  features: {user: {}}
  tables: {user: {rows: 90, optimizer: {least: 0.0}}}
  optimizer: {kind: sign, learning_rate: 0.5, least: 100.0}
train: {batch_size: 32, steps: 1}
"""
PROGRAM = """
import sys
from typer.testing import CliRunner
from embark_jax.cli import app
from embark_jax.planner.request.workload import STATE_VALUES

assert STATE_VALUES["sign"] == (1, 1)
assert "jax" not in sys.modules
assert "of kind sign" in CliRunner().invoke(app, ["keys", "embedding"]).output

import jax, numpy as np
import embark_jax as ej
from embark_jax.config import reading
from embark_jax.run import experiment

run = experiment.build(reading.load("sign.yaml"))
trainer = run.trainer()
assert trainer.optimizers.rows.named == {"user": ej.Sign(0.5, least=0.0)}
before = jax.tree.map(np.asarray, trainer.state.storages)
next(iter(trainer.iterate(run.dataset, 1)))
for name, rows in trainer.state.storages.items():
    moved = np.abs(np.asarray(rows) - before[name]).ravel()
    np.testing.assert_allclose(moved[moved > 0], 0.5, rtol=1e-5)
    assert moved.any()
"""


def run_with_the_rule(tmp_path, rule, program):
    """Runs a program with a copy of the kernels that has one more rule."""
    shutil.copytree(KERNELS, tmp_path / "embark_kernels")
    path = tmp_path / "embark_kernels" / "optimizers.py"
    registry = "ROW_OPTIMIZERS: dict[str, type[RowOptimizer]] = {\n"
    text = path.read_text()
    assert text.count(registry) == 1
    text = text.replace(registry, f'{rule}{registry}    "sign": Sign,\n')
    path.write_text(text.replace("__all__ = [\n", '__all__ = [\n    "Sign",\n'))
    folders = [str(tmp_path), str(KERNELS.parents[1])]
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders), "COLUMNS": "500"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.slow
def test_it_needs_one_file(tmp_path):
    (tmp_path / "sign.yaml").write_text(CONFIG)
    run_with_the_rule(tmp_path, RULE, PROGRAM)
