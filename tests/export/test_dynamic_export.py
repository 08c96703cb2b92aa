"""Exports of dynamic tables: rows by key, and zeros for all other keys."""

import dataclasses
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file

from embark_jax.checkpoint import Checkpointer
from embark_jax.config import reading
from embark_jax.data import Batch
from embark_jax.export import load_id_scorer
from embark_jax.export.lookup import LookupTable
from embark_jax.run import experiment
from tests import runs
from tests.export.without_jax import score_without_jax
from tests.runs import done

CONFIG = """\
name: growing
data: {kind: synthetic, dense_features: 2, train_samples: 4096, test_samples: 100}
model: {kind: dcn, cross_layers: 1, deep: [4]}
mesh: {nodes: 1, gpus_per_node: 2}
embedding:
  dim: 4
  tables:
    user: {rows: 4000, slots: 200, max_slots: 400, init_scale: 0.4, dtype: DTYPE}
    item: {rows: 60}
  features:
    user: {hotness: 2, pooling: mean}
    friend: {table: user}
    item: {}
train: {batch_size: 32}
"""
FAR = 2**62 + 2**33


class Exported(NamedTuple):
    """A run, its export, and a batch that was trained, with its logits."""

    workdir: Path
    folder: Path
    known: set[int]
    batch: Batch
    logits: np.ndarray


@pytest.fixture(
    scope="module",
    params=["bfloat16", pytest.param("float16", marks=pytest.mark.slow)],
)
def exported(tmp_path_factory, request) -> Exported:
    workdir = tmp_path_factory.mktemp("run")
    text = CONFIG.replace("DTYPE", request.param)
    config = reading.load(runs.write_config(workdir, text))
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
    ((batch, logits),) = trainer.predict([batch])
    done("export", workdir, "--out", workdir / "exported")
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
    arrays = load_file(exported.folder / "tables/user.safetensors")
    assert arrays["keys"].tolist() == sorted(exported.known)
    assert arrays["rows"].shape == (len(exported.known), 4)


def test_a_run_and_an_export_score_alike(exported, tmp_path):
    """An export without JAX."""
    batch = exported.batch
    for logits in (
        score_without_jax(exported.folder, batch, tmp_path),
        load_id_scorer(exported.workdir).logits(batch.dense, batch.ids),
    ):
        np.testing.assert_allclose(logits, exported.logits, rtol=1e-5, atol=1e-5)


def test_a_key_without_a_row_scores_as_one_of_zeros(exported):
    """As no key does, where rows are summed."""
    batch, scorer = exported.batch, load_id_scorer(exported.folder)
    logits = [
        scorer.logits(batch.dense, {**batch.ids, "friend": np.full((32, 1), key)})
        for key in (-1, FAR + 2**40)
    ]
    np.testing.assert_array_equal(*logits)
    assert (logits[0] != scorer.logits(batch.dense, batch.ids)).any()


def test_rows_by_key_are_updated():
    """By the changes of a later table, from which keys have gone."""

    def table(keys, rows) -> LookupTable:
        return LookupTable(np.array(rows, np.float32), keys=np.array(keys, np.int64))

    before = table([3, 7, 20], np.ones((3, 2)))
    later = table([1, 7, 20, 30], [[127, 64], [7, 7], [1, 1], [3, 3]])
    changes = later.changes_since(before)
    assert changes.keys is not None
    assert changes.keys.tolist() == [1, 3, 7, 30]
    rows = before.updated(changes)
    keys = np.array([1, 2, 3, 7, 20, 30])
    np.testing.assert_array_equal(rows[keys], later[keys])
    assert not rows[np.array([2, 3])].any()


def test_quantized_rows_of_any_size():
    rows = np.array([[0, 0], [1e-45, 0], [-3e38, 1e38], [0.5, -1]], np.float32)
    table = LookupTable(rows).in_format("int8")
    values, scales = table.values, table.scales
    assert scales is not None
    assert (values.dtype, scales.dtype) == (np.int8, np.float32)
    change = np.abs(values * scales[:, None].astype(np.float64) - rows)
    assert (change <= 0.5001 * scales[:, None] + 1e-44).all()
    assert np.isfinite(values * scales[:, None]).all()
