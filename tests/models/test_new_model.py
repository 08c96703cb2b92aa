"""A new model needs two files of the package: its own, and ``config/models.py`` with
its line of the registry. Help, public names, the reference, training,
exports and scoring follow."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import embark_jax

PACKAGE = Path(embark_jax.__file__).parent
ROOT = PACKAGE.parent
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
REGISTRY = "MODELS = {\n"
CONFIG = """\
data: {kind: synthetic, dense_features: 2, train_samples: 64, test_samples: 32}
model: {kind: toy, bonus: 2.5}
embedding: {dim: 4, features: {user: {}}, tables: {user: {rows: 90}}}
train: {batch_size: 32, steps: 2}
"""
PROGRAM = """
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


@pytest.mark.slow
def test_it_needs_two_files(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "embark_jax", symlinks=True)
    for folder in ("tests", "docs", "experiments", "configs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "embark_jax/models/toy.py").write_text(MODEL)
    path = tmp_path / "embark_jax/config/models.py"
    text = path.read_text()
    assert text.count(REGISTRY) == 1
    line = '    "toy": "embark_jax.models.toy:Toy",\n'
    path.write_text(text.replace(REGISTRY, f"{REGISTRY}{line}"))
    (tmp_path / "toy.yaml").write_text(CONFIG)
    search = [str(tmp_path), str(ROOT / "kernels")]
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(search)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
