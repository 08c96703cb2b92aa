"""Exports of models of one's own: towers, functions, and what ONNX cannot say."""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import load_file

import embark_jax as ej
from embark_jax.export import load_id_scorer
from embark_jax.run.loading import load_run
from tests import runs
from tests.export.without_jax import score_without_jax
from tests.runs import done, embark
from tests.thorough import thorough

MODULE = '''\
import jax
import jax.numpy as jnp
from flax import nnx

from embark_jax.models import FunctionModel


class Towers(nnx.Module):
    """Two towers, a buffer of integers, and a variable of its own kind."""

    item = "item"

    def __init__(self, shapes, dense_features, *, rngs):
        (self.dim,) = shapes["user"]
        self.user = nnx.Linear(self.dim + dense_features, 5, rngs=rngs)
        self.item_layer = nnx.Linear(self.dim, 5, rngs=rngs)
        self.order = nnx.Variable(jnp.array([4, 3, 2, 1, 0]))
        self.scale = nnx.BatchStat(jnp.array(0.5))
        self.only_in_training = nnx.Variable(jnp.zeros(1000))

    def users(self, dense, embeddings):
        rows = jnp.concatenate([embeddings["user"], dense], axis=1)
        return jnp.tanh(self.user(rows))[:, self.order[...]]

    def items(self, dense, embeddings):
        return self.item_layer(embeddings["item"])

    def __call__(self, dense, embeddings):
        products = self.users(dense, embeddings) * self.items(dense, embeddings)
        return self.scale[...] * products.sum(axis=1)


def functions(shapes, dense_features, *, rngs):
    params = {"a": {"w": rngs.params.normal((8 + dense_features, 4))}, "b": jnp.ones(4)}

    def apply(params, dense, embeddings):
        rows = jnp.concatenate([dense, embeddings["user"] + embeddings["item"]], axis=1)
        return jax.nn.gelu(rows @ params["a"]["w"]) @ params["b"]

    return FunctionModel(params, apply)


class Eigenvalues(nnx.Module):
    def __init__(self, shapes, dense_features, *, rngs):
        self.w = nnx.Param(jnp.eye(8))

    def __call__(self, dense, embeddings):
        rows = embeddings["user"][:, :, None] * embeddings["item"][:, None]
        return jnp.linalg.eigvalsh(rows + self.w[...][None])[:, 0]
'''
CONFIG = """\
name: own
data: {kind: synthetic, dense_features: 3, train_samples: 512, test_samples: 64}
model: {kind: "MODEL"}
mesh: {nodes: 1, gpus_per_node: 2}
embedding:
  dim: 8
  tables: {user: {rows: 300}, item: {rows: 60}}
  features: {user: {}, item: {}}
train: {batch_size: 32, steps: 3}
"""


class Exported(NamedTuple):
    """A run, its export, and a batch with its logits."""

    run: Path
    folder: Path
    trainer: ej.Trainer
    batch: ej.Batch
    logits: np.ndarray


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("mine", None)


def train(folder: Path, name: str) -> Path:
    config = runs.write_config(folder, CONFIG.replace("MODEL", f"mine:{name}"))
    done("train", config, "--workdir", folder / "run")
    return folder / "run"


@pytest.fixture(params=thorough(["Towers", "functions"], ["Towers"]))
def exported(request, module, tmp_path) -> Exported:
    run, folder = train(tmp_path, request.param), tmp_path / "export"
    done("export", run, "--out", folder, "--trust-code")
    setup, trainer = load_run(run, trust_code=True)
    ((batch, logits),) = trainer.predict([setup.training_data.train_batch(7, 32)])
    return Exported(run, folder, trainer, batch, np.asarray(logits))


def item_vectors(trainer):
    """The vectors that the model makes of all items."""
    rows = trainer.table("item").rows
    return trainer.model.items(np.zeros((60, 3)), {"item": rows})


def test_a_model_of_ones_own_is_scored_without_jax_and_without_its_code(
    exported, tmp_path
):
    folder, batch = exported.folder, exported.batch
    assert not list(folder.rglob("*.py"))
    logits = score_without_jax(folder, batch, tmp_path)
    np.testing.assert_allclose(logits, exported.logits, rtol=1e-5, atol=1e-6)
    logits = load_id_scorer(exported.run, trust_code=True).logits(
        batch.dense, batch.ids
    )
    np.testing.assert_allclose(logits, exported.logits, rtol=1e-5, atol=1e-6)
    stored = load_file(folder / "dense.safetensors")
    towers = {path.stem for path in folder.glob("*s.onnx")}
    if "b" in stored:  # of the functions
        assert (stored.keys(), towers) == ({"a.w", "b"}, set())
        return
    assert stored.keys() >= {"order", "scale"}
    assert "only_in_training" not in stored
    assert towers == {"users", "items"}
    rows = {
        name: load_file(folder / f"tables/{name}.safetensors")["rows"][ids[:, 0]]
        for name, ids in batch.ids.items()
    }
    expected = item_vectors(exported.trainer)
    for scorer in (folder, exported.run):
        found = load_id_scorer(scorer, trust_code=True).item_vectors()
        np.testing.assert_array_equal(found[0], range(60))
        np.testing.assert_allclose(found[1], expected, rtol=1e-5, atol=1e-6)
    for tower, inputs in {
        "users": {"dense": batch.dense, "embeddings.user": rows["user"]},
        "items": {"embeddings.item": rows["item"]},
    }.items():
        session = onnxruntime.InferenceSession(folder / f"{tower}.onnx")
        assert {each.name for each in session.get_inputs()} == inputs.keys()
        (vectors,) = session.run(["vectors"], inputs)
        ((_, expected),) = exported.trainer.predict([batch], method=tower)
        np.testing.assert_allclose(vectors, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_an_operation_without_a_form_in_onnx_is_named(module, tmp_path):
    run, folder = train(tmp_path, "Eigenvalues"), tmp_path / "export"
    outcome = embark("export", run, "--out", folder, "--trust-code")
    runs.assert_refused(outcome, "model.onnx: jax2onnx cannot convert it", "--no-onnx")
    assert not (folder / "model.json").exists()
    folder = tmp_path / "jax"
    done("export", run, "--out", folder, "--trust-code", "--no-onnx")
