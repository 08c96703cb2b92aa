"""Exports of dynamic tables: rows by key, and initial rows of all other keys."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax import export as jax_export
from safetensors.numpy import load_file

from embark_jax.checkpoint import Checkpointer
from embark_jax.config import reading
from embark_jax.data import Batch
from embark_jax.export import load_scorer
from embark_jax.export.lookup import KeyedRows, threefry
from embark_jax.run import experiment
from tests import runs
from tests.export.raw_rows import BatchesAsRows
from tests.runs import embark

CONFIG = """\
name: growing
data: {kind: synthetic, dense_features: 2, train_samples: 4096, test_samples: 100}
model: {kind: dcn, cross_layers: 1, deep: [4]}
mesh: {nodes: 1, gpus_per_node: 2}
embedding:
  dim: 4
  tables:
    user: {rows: 4000, slots: 200, max_slots: 400, init_scale: 0.4}
    item: {rows: 60}
  features:
    user: {hotness: 2, pooling: mean}
    friend: {table: user}
    item: {}
train: {batch_size: 32}
"""
FAR = 2**62 + 2**33


class Exported(NamedTuple):
    """A run, its export, and a batch, half of whose users are new, with its logits."""

    workdir: Path
    folder: Path
    known: set[int]
    batch: Batch
    logits: np.ndarray


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Exported:
    workdir = tmp_path_factory.mktemp("run")
    config = reading.load(runs.write_config(workdir, CONFIG))
    setup = experiment.build(config)
    trainer, known = setup.trainer(), set()
    reading.save(config, workdir / "config.yaml")
    for step in range(4):
        batch = far(setup.dataset.train_batch(step, 32))
        trainer.train([batch])
        users = np.concatenate([batch.ids[n].ravel() for n in ("user", "friend")])
        known |= set(users.tolist())
    with Checkpointer(workdir / "checkpoints", setup.identity, keep=1) as checkpoints:
        checkpoints.save(trainer.whole_state(), trainer.step, trainer.embeddings, {})
    batch = far(setup.dataset.train_batch(100, 32))
    ((batch, logits),) = trainer.predict([batch])
    done = embark("export", workdir, "--out", workdir / "exported")
    assert (done.code, done.err) == (0, "")
    known -= {-1}
    return Exported(workdir, workdir / "exported", known, batch, np.asarray(logits))


def far(batch: Batch) -> Batch:
    """With users whose keys need 63 bits."""
    ids = {
        name: np.where(each >= 0, each.astype(np.int64) + FAR, -1)
        if name != "item"
        else each
        for name, each in batch.ids.items()
    }
    return dataclasses.replace(batch, ids=ids)


def test_rows_lie_beside_their_keys(exported):
    description = json.loads((exported.folder / "model.json").read_text())
    assert description["tables"]["user"]["rows"] is None
    assert description["tables"]["item"]["rows"] == 60
    found = load_file(exported.folder / "tables/user.safetensors")
    assert found["keys"].tolist() == sorted(exported.known)
    assert found["user"].shape == (len(exported.known), 4)
    assert not set(exported.batch.ids["user"].ravel()) <= exported.known | {-1}


def test_numpy_alone_gives_the_logits(exported, tmp_path):
    samples = tmp_path / "samples.npz"
    ids = {f"ids/{name}": each for name, each in exported.batch.ids.items()}
    np.savez(samples, dense=exported.batch.dense, **ids)
    script = [sys.executable, "-I", exported.folder / "score.py", samples]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    logits = np.array(done.stdout.split(), np.float32)
    np.testing.assert_allclose(logits, exported.logits, rtol=1e-5, atol=1e-5)


def test_the_serialized_function_gives_the_logits(exported):
    folder = exported.folder
    scoring = jax_export.deserialize(bytearray((folder / "scoring.jax").read_bytes()))
    tables: dict[str, Any] = load_file(folder / "tables/item.safetensors")
    user = load_file(folder / "tables/user.safetensors")
    tables["user"] = user["keys"], user["user"]
    params = load_file(folder / "dense.safetensors")
    batch = exported.batch
    ids = {n: batch.ids[n].astype(np.int64) for n in ("user", "friend")}
    ids["item"] = batch.ids["item"].astype(np.int32)
    with jax.enable_x64(True):
        found = np.asarray(scoring.call(params, tables, batch.dense, ids, {}))
        ids["friend"][3] = -2  # no key
        wrong = np.asarray(scoring.call(params, tables, batch.dense, ids, {}))
    np.testing.assert_allclose(found, exported.logits, rtol=1e-5, atol=1e-5)
    assert np.flatnonzero(np.isnan(wrong)).tolist() == [3]


@pytest.mark.parametrize("name", ["workdir", "folder"])
def test_a_run_and_an_export_score_alike(exported, monkeypatch, name):
    monkeypatch.setattr("embark_jax.export.scorer.RowEncoder", BatchesAsRows)
    found = load_scorer(getattr(exported, name)).predict(exported.batch)
    expected = 1 / (1 + np.exp(-exported.logits.astype(np.float64)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_threefry_is_the_published_one():
    """Known answers of Random123, kat_vectors: threefry2x32, 20 rounds."""
    zero, ones = np.uint32(0), np.uint32(0xFFFFFFFF)
    assert threefry(zero, zero, zero, zero) == (0x6B200159, 0x99BA4EFE)
    assert threefry(ones, ones, ones, ones) == (0x1CB996FC, 0xBB002BE7)


def test_rows_by_key_are_updated():
    initial = {"key": [0, 1], "table": 5, "scale": 0.5}
    keys = np.array([3, 7, 20], np.int64)
    table = KeyedRows(keys, np.ones((3, 2), np.float32), initial)
    new = np.array([30, 7, 1], np.int64)
    first = table[new[:1]]
    assert (np.abs(first) < 0.5).all()
    table.update(new, np.array([[3, 3], [7, 7], [1, 2]], np.float32))
    assert table.keys.tolist() == [1, 3, 7, 20, 30]
    expected = [[1, 2], [1, 1], [7, 7], [1, 1], [3, 3]]
    np.testing.assert_array_equal(table[table.keys], expected)
    np.testing.assert_array_equal(table.rows, expected)
