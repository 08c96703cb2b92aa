"""A run is loaded as its own trainer left it, and goes on from there."""

import shutil
import sys

import numpy as np
import pytest

import embark_jax as ej
from embark_jax._base.config import ConfigError
from embark_jax.checkpoint import CheckpointError
from tests import runs

MESH = ("mesh.nodes=1", "mesh.gpus_per_node=2")
ONE = ("mesh.nodes=1", "mesh.gpus_per_node=1", "train.steps=1")
OWN = """\
from pathlib import Path

import jax.numpy as jnp
from flax import nnx

(Path(__file__).parent / "was_run").touch()


class Sum(nnx.Module):
    def __init__(self, embedding_shapes, dense_features, *, rngs):
        self.weight = nnx.Param(jnp.ones(dense_features))

    def __call__(self, dense, embeddings):
        return dense @ self.weight[...] + sum(e.sum(1) for e in embeddings.values())
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of six steps, with checkpoints at 4 and 6."""
    folder = tmp_path_factory.mktemp("loaded")
    config = runs.write_config(folder)
    runs.done("train", config, *MESH, "--workdir", folder / "run")
    return folder / "run"


def tables(trainer: ej.Trainer) -> dict[str, np.ndarray]:
    names = [table.name for table in trainer.embeddings.plan.tables]
    return {name: trainer.table(name).rows for name in names}


def assert_same(found: ej.Trainer, expected: ej.Trainer, data) -> None:
    """Bit by bit: rows, and what the models make of a batch."""
    for name, rows in tables(expected).items():
        np.testing.assert_array_equal(tables(found)[name], rows, err_msg=name)
    logits = [
        np.asarray(next(trainer.predict(data.test_batches(64)))[1])
        for trainer in (found, expected)
    ]
    np.testing.assert_array_equal(*logits)


def test_it_has_what_the_run_had_and_trains_on(whole):
    before = runs.snapshot(whole)
    (setup, last), (_, middle) = ej.load_run(whole), ej.load_run(whole, step=4)
    assert (last.step, middle.step) == (6, 4)
    assert setup.plan == ej.Plan.from_json((whole / "plan.json").read_text())
    assert setup.config == ej.load_config(whole / "config.yaml")
    losses = {}
    middle.fit(
        setup.training_data,
        6,
        callback=lambda result: losses.update({result.step: result.loss}),
        progress=False,
    )
    assert losses == {step: runs.losses(whole)[step] for step in (5, 6)}
    assert_same(middle, last, setup.dataset)
    assert runs.snapshot(whole) == before
    metrics = last.evaluate(setup.dataset.test_batches(64))
    assert metrics.auc == pytest.approx(runs.final(whole)["test_auc"], abs=1e-6)


def test_on_another_mesh_it_has_the_same_rows(whole):
    setup, other = ej.load_run(whole, ["mesh.nodes=2", "mesh.gpus_per_node=4"])
    assert setup.plan.devices == 8
    for name, rows in tables(ej.load_run(whole)[1]).items():
        np.testing.assert_array_equal(tables(other)[name], rows)
    with pytest.raises(CheckpointError, match="seed is 0 in the checkpoint, 1 here"):
        ej.load_run(whole, ["seed=1"])


def test_a_damaged_checkpoint_is_left_for_the_one_before(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    newest = run / "checkpoints" / "6"
    largest = max(newest.rglob("c/*/*/*"), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    assert ej.load_run(run)[1].step == 4
    assert newest.exists()


def test_a_folder_s_code_runs_only_if_it_is_trusted(tmp_path, monkeypatch):
    (tmp_path / "totalling.py").write_text(OWN)
    config = runs.write_config(
        tmp_path,
        runs.CONFIG.replace(
            "{kind: dlrm, bottom: [8, 4], top: [8, 1]}", '{kind: "totalling:Sum"}'
        ),
    )
    run = tmp_path / "run"
    monkeypatch.syspath_prepend(str(tmp_path))
    runs.done("train", config, *ONE, "--workdir", run)
    (tmp_path / "was_run").unlink()
    monkeypatch.delitem(sys.modules, "totalling")
    with pytest.raises(ConfigError, match=r"names totalling:Sum, code that Python"):
        ej.load_run(run)
    assert not (tmp_path / "was_run").exists()
    assert ej.load_run(run, trust_code=True)[1].step == 1
    assert (tmp_path / "was_run").exists()
