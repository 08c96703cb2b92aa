"""Synthetic clicks on disk: the samples that the generator makes."""

import numpy as np
import pytest

from embark_jax.config import reading
from embark_jax.data import PreparedData, SyntheticClicks
from embark_jax.data import manifest as manifests
from embark_jax.data.prepare import synthetic_files
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.run import experiment
from tests.runs import done

TABLES = [TableSpec("big", 10**10, 4), TableSpec("small", 50, 4)]
FEATURES = [
    FeatureSpec("big"),
    FeatureSpec("bag", "small", hotness=5, pooling="mean"),
    FeatureSpec("small"),
]


def test_the_files_hold_what_the_generator_makes(tmp_path, monkeypatch):
    monkeypatch.setattr(manifests, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(synthetic_files, "FILE_BYTES", 4 * 4096)
    data = SyntheticClicks(TABLES, FEATURES, train_samples=1500, test_samples=700)
    synthetic_files.write(data, tmp_path, {"seed": 0})
    read = PreparedData(tmp_path)
    assert len(read.manifest.files["train"]) > 3
    assert read.features == data.features
    assert read.bayes_auc() == data.bayes_auc()
    for stored, expected in (
        (list(read.in_file_order("train", 1500)), data.train_batch(0, 1500)),
        (list(read.test_batches(700)), next(data.test_batches(700))),
    ):
        (found,) = stored
        np.testing.assert_array_equal(found.labels, expected.labels)
        np.testing.assert_array_equal(found.dense, expected.dense)
        for name, ids in expected.ids.items():
            np.testing.assert_array_equal(found.ids[name], ids)
            assert found.ids[name].dtype == ids.dtype


def test_weights_are_refused(tmp_path):
    weighted = [FeatureSpec("small", weighted=True)]
    data = SyntheticClicks(TABLES[1:], weighted, train_samples=10, test_samples=10)
    with pytest.raises(ValueError, match="feature 'small' is weighted, must not be"):
        synthetic_files.write(data, tmp_path, {})


def test_the_command(tmp_path):
    tables = tmp_path / "model.yaml"
    tables.write_text(
        "{zipf_exponent: 1.2, batch: 200, tables: [{rows: 9000, dim: 4, hotness: 3}], "
        "dense: {features: 2, bottom: [4], top: [1], interaction: dot}}"
    )
    out = tmp_path / "out"
    keys = ("data.train_samples=3000", "data.test_samples=300", "scale=0.1")
    outcome = done("data", "synth", tables, *keys, "--out", out)
    assert "300 train, 0 validation, 30 test samples, 900 rows of 1" in outcome.out
    assert PreparedData(out).train_batch(0, 300).ids["t0"].shape == (300, 3)
    # The config beside them trains the list's model, with the rows of the data.
    assert f"embark train {out / 'train.yaml'}\n" in outcome.out
    setup = experiment.build(reading.load(out / "train.yaml"))
    assert [(t.rows, t.dim) for t in setup.tables] == [(900, 4)]
    assert [(f.hotness, f.pooling) for f in setup.features] == [(3, "mean")]
    assert (setup.plan.batch_size, setup.config.model.kind) == (20, "dlrm")
