"""A new model needs two files of the package, its own and ``config/models.py`` with its
line of the registry; a new row optimizer one. Help, public names, the reference, the
planner, training, exports and scoring follow."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODEL = '''\
"""A toy model."""

from typing import Annotated

import jax.numpy as jnp
from flax import nnx
from pydantic import Field

from embark_jax.models.interface import in_order, pooled_dims
from embark_jax.models.layers import MLP
from embark_jax.models.options import ComputeDtype, Dropout, Widths


class Toy(nnx.Module):
    """An MLP, whose logit grows by a bonus.

    Args:
      bonus: what is added to each logit.
      hidden: hidden widths.
    """

    def __init__(
        self,
        embedding_shapes,
        dense_features,
        bonus: Annotated[float, Field(examples=[3.0])],
        hidden: Widths = (6,),
        compute_dtype: ComputeDtype = "float32",
        dropout: Dropout = 0.0,
        batch_norm: bool = False,
        *,
        rngs,
    ):
        self.dims = pooled_dims(embedding_shapes)
        width = dense_features + sum(dim for _, dim in self.dims)
        self.mlp = MLP(
            width,
            (*hidden, 1),
            last_relu=False,
            compute_dtype=compute_dtype,
            dropout=dropout,
            batch_norm=batch_norm,
            rngs=rngs,
        )
        self.bonus = bonus

    def __call__(self, dense, embeddings):
        rows = jnp.concatenate([dense, *in_order(embeddings, self.dims)], axis=1)
        return self.mlp(rows)[:, 0] + self.bonus
'''
TOY = """\
data: {kind: synthetic, dense_features: 2, train_samples: 64, test_samples: 32}
model: {kind: toy, bonus: 2.5}
embedding: {dim: 4, features: {user: {}}, tables: {user: {rows: 90}}}
train: {batch_size: 32, steps: 2}
"""
OF_MODEL = """
import sys
from pathlib import Path

from docs import site_reference
page = site_reference.config_keys()
assert "`model` (`kind: toy`)" in page
assert "| `bonus` | number | required, such as `3.0` |" in page

import numpy as np
import embark_jax as ej
from embark_jax import models
from embark_jax.export import load_id_scorer
from tests import runs
from tests.models import small

assert models.Toy.__name__ == "Toy"
assert "Toy" in dir(models)
assert small.small_config(small.KINDS["toy"]).bonus == 3.0
runs.done("train", "toy.yaml", "--workdir", "run")
runs.done("export", "run", "--out", "export")
setup, trainer = ej.load_run("run")
((batch, logits),) = trainer.predict([setup.training_data.train_batch(0, 32)])
scored = load_id_scorer("export").logits(batch.dense, batch.ids)
np.testing.assert_allclose(scored, logits, rtol=1e-5, atol=1e-6)
assert np.mean(scored) > 1
"""
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
SIGN = """\
data: {kind: synthetic, dense_features: 2, train_samples: 64, test_samples: 32}
model: {kind: dlrm, bottom: [4], top: [1]}
embedding:
  dim: 4
  features: {user: {}}
  tables: {user: {rows: 90, optimizer: {least: 0.0}}}
  optimizer: {kind: sign, learning_rate: 0.5, least: 100.0}
train: {batch_size: 32, steps: 1}
"""
OF_RULE = """
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


def replace(path: Path, place: str, text: str) -> None:
    """Replaces the only such place of a file."""
    old = path.read_text()
    assert old.count(place) == 1
    path.write_text(old.replace(place, text))


@pytest.fixture
def copy(tmp_path) -> Path:
    """A copy of the package and of the kernels, that a test may change."""
    for source in (ROOT / "embark_jax", ROOT / "kernels" / "embark_kernels"):
        shutil.copytree(source, tmp_path / source.name, symlinks=True)
    for folder in ("tests", "docs", "experiments", "configs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    return tmp_path


def run(folder: Path, program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "500"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_model_needs_two_files(copy):
    (copy / "embark_jax/models/toy.py").write_text(MODEL)
    (copy / "toy.yaml").write_text(TOY)
    line = '    "toy": "embark_jax.models.toy:Toy",\n'
    place = "MODELS = {\n"
    replace(copy / "embark_jax/config/models.py", place, place + line)
    run(copy, OF_MODEL)


@pytest.mark.slow
def test_a_row_optimizer_needs_one_file(copy):
    path = copy / "embark_kernels/optimizers.py"
    registry = "ROW_OPTIMIZERS: dict[str, type[RowOptimizer]] = {\n"
    replace(path, registry, f'{RULE}{registry}    "sign": Sign,\n')
    replace(path, "__all__ = [\n", '__all__ = [\n    "Sign",\n')
    (copy / "sign.yaml").write_text(SIGN)
    run(copy, OF_RULE)
