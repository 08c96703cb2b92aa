"""Training and exports know the events of a history by their ids, not by rows that are
not zeros."""

import dataclasses

import jax
import numpy as np
import pytest

from embark_jax.checkpoint import Checkpointer
from embark_jax.config import reading
from embark_jax.export import load_id_scorer
from embark_jax.run import experiment
from tests import runs
from tests.runs import done

pytestmark = pytest.mark.slow
CONFIG = """\
data: {kind: synthetic, dense_features: 1, train_samples: 64, test_samples: 32}
model: {kind: MODEL, history: {past: now}OPTIONS}
embedding:
  dim: 8
  tables: {past: {rows: 50, init_scale: 0.0}, now: {rows: 50}}
  features: {past: {hotness: 3, pooling: none}, now: {}}
  optimizer: {kind: sgd, learning_rate: 1.0}
train: {batch_size: 32, steps: 1}
mesh: {nodes: 1, gpus_per_node: 2}
"""


KINDS = {
    "din": "",
    "hstu": "",
    "tbsm": ", bottom: [8]",
    "next_item": "",
    "dlrm_v4": ", content: past",
}
"""Further options of each model."""


def write_config(kind, folder):
    text = CONFIG.replace("MODEL", kind).replace("OPTIONS", KINDS[kind])
    return runs.write_config(folder, text)


def saved(path, folder):
    """Saves the first state of a config's run; returns the trainer and a batch."""
    config = reading.load(path)
    run = experiment.build(config)
    trainer = run.trainer()
    reading.save(config, folder / "config.yaml")
    with Checkpointer(folder / "checkpoints", run.identity, keep=1) as checkpoints:
        checkpoints.save(trainer.state, 1, trainer.embeddings, {})
    (batch,) = run.dataset.test_batches(32)
    return trainer, batch


def logits_of(lengths, scorers, trainer, batch):
    """Returns the logits of a batch whose histories have these lengths, for which the
    trainer and the scorers must agree."""
    past = np.where(np.arange(3) < lengths[:, None], batch.ids["past"], -1)
    batch = dataclasses.replace(batch, ids={**batch.ids, "past": past})
    ((_, expected),) = trainer.predict([batch])
    for scorer in scorers:
        scores = scorer.logits(batch.dense, batch.ids)
        np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    return expected


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_zeros_are_events(kind, tmp_path):
    trainer, batch = saved(write_config(kind, tmp_path), tmp_path)
    done("export", tmp_path, "--out", tmp_path / "exported")
    scorers = load_id_scorer(tmp_path / "exported"), load_id_scorer(tmp_path)
    assert not jax.tree.map(np.asarray, trainer.table("past").rows).any()
    some, none = (
        logits_of(lengths, scorers, trainer, batch)
        for lengths in (np.arange(32) % 4, np.zeros(32, int))
    )
    if kind != "din":  # which adds up events of zeros
        changed = np.abs(some - none) > 1e-4 * np.abs(none).max()
        np.testing.assert_array_equal(changed, np.arange(32) % 4 > 0)


def test_rows_of_zeros_learn(tmp_path):
    trainer, batch = saved(write_config("din", tmp_path), tmp_path)

    def zeros() -> int:
        storages = jax.tree.map(np.asarray, trainer.state.storages)
        return sum(int((~rows.any(axis=1)).sum()) for rows in storages.values())

    before = zeros()
    assert before >= 50
    list(trainer.iterate_batches([batch]))
    assert zeros() < before
