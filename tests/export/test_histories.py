"""Exports know the events of a history by their ids, not by rows that are not zeros."""

import dataclasses

import jax
import numpy as np
import pytest

from embark_jax.checkpoint import Checkpointer
from embark_jax.config import reading
from embark_jax.export import load_id_scorer
from embark_jax.export.run_scorer import load_run_scorer
from embark_jax.run import experiment
from tests.models.test_histories_of_zeros import KINDS, write_config
from tests.runs import done
from tests.thorough import thorough


@pytest.mark.parametrize("kind", thorough(KINDS, ["hstu"]))
def test_rows_of_zeros_are_events(kind, tmp_path):
    config = reading.load(write_config(kind, tmp_path))
    run = experiment.build(config)
    trainer = run.trainer()
    reading.save(config, tmp_path / "config.yaml")
    with Checkpointer(tmp_path / "checkpoints", run.identity, keep=1) as checkpoints:
        checkpoints.save(trainer.state, 1, trainer.embeddings, {})
    done("export", tmp_path, "--out", tmp_path / "exported")

    (batch,) = run.dataset.test_batches(32)
    rows = jax.tree.map(np.asarray, trainer.table("past").rows)
    assert not rows.any()

    def logits(lengths):
        past = np.where(np.arange(3) < lengths[:, None], batch.ids["past"], -1)
        with_past = dataclasses.replace(batch, ids={**batch.ids, "past": past})
        ((_, expected),) = trainer.predict([with_past])
        for scorer in (
            load_id_scorer(tmp_path / "exported"),
            load_run_scorer(tmp_path),
        ):
            scores = scorer.logits(with_past.dense, with_past.ids)
            np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
        return expected

    some, none = logits(np.arange(32) % 4), logits(np.zeros(32, int))
    if kind != "din":  # which adds up events of zeros
        changed = np.abs(some - none) > 1e-4 * np.abs(none).max()
        np.testing.assert_array_equal(changed, np.arange(32) % 4 > 0)
