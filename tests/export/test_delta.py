"""A whole export and the changes after it are the later whole export."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from embark_jax.checkpoint import Checkpointer
from embark_jax.config import reading
from embark_jax.export import ExportError, load_scorer, score
from embark_jax.run import experiment
from tests import runs
from tests.export.changed import sign
from tests.export.raw_rows import BatchesAsRows
from tests.runs import embark

CONFIG = """\
name: changing
data: {kind: synthetic, dense_features: 2, train_samples: 4096, test_samples: 100}
model: {kind: dcn, cross_layers: 1, deep: [4]}
mesh: {nodes: 1, gpus_per_node: 2}
embedding:
  dim: 4
  tables:
    user: {rows: 400, slots: 40, max_slots: 60}
    item: {rows: 300, tier: host, slots: 80}
    city: {rows: 200}
  features:
    user: {}
    item: {}
    city: {}
train: {batch_size: 16}
"""
STEPS = (2, 4, 5)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run with a checkpoint, and a whole export, of each of its steps."""
    workdir = tmp_path_factory.mktemp("run")
    config = reading.load(runs.write_config(workdir, CONFIG))
    setup = experiment.build(config)
    trainer = setup.trainer()
    reading.save(config, workdir / "config.yaml")
    with Checkpointer(workdir / "checkpoints", setup.identity, keep=3) as checkpoints:
        for step in STEPS:
            trainer.fit(setup.training_data, step)
            state = trainer.whole_state()
            checkpoints.save(state, step, trainer.embeddings, {})
    for step in STEPS:
        export(workdir, workdir / f"whole{step}", "--step", step)
    return workdir


def export(workdir: Path, out: Path, *args) -> Path:
    done = embark("export", workdir, "--out", out, *args)
    assert (done.code, done.err) == (0, "")
    return out


def assert_same_model(found: score.Model, folder: Path) -> None:
    """All that a whole export has, and initial rows elsewhere."""
    expected = score.Model(folder)
    assert found.description["step"] == expected.description["step"]
    for name in ("item", "city"):
        np.testing.assert_array_equal(found.tables[name], expected.tables[name])
    for model, other in ((found, expected), (expected, found)):
        keys = np.append(model.tables["user"].keys, 2**62)
        np.testing.assert_array_equal(
            other.tables["user"][keys], model.tables["user"][keys]
        )
    for name, each in load_file(folder / "dense.safetensors").items():
        np.testing.assert_array_equal(found.params[name], each)


@pytest.mark.parametrize("since", ["2", "checkpoints/2", "whole2"])
def test_a_whole_export_and_changes_are_the_later_whole_export(run, since, tmp_path):
    if since != "2":
        since = run / since
    delta = export(run, tmp_path / "delta", "--step", 4, "--since", since)
    assert not (delta / "scoring.jax").exists()
    city = load_file(delta / "tables/city.safetensors")
    assert 0 < len(city["keys"]) <= 2 * 16  # two steps of 16 samples
    before, after = (
        load_file(run / f"whole{step}/tables/city.safetensors")["city"]
        for step in STEPS[:2]
    )
    changed = np.flatnonzero((before != after).any(axis=1))
    assert city["keys"].tolist() == changed.tolist()
    model = score.Model(run / "whole2")
    model.update(delta)
    assert_same_model(model, run / "whole4")
    further = export(run, tmp_path / "further", "--since", delta)
    model.update(further)
    assert_same_model(model, run / "whole5")
    # Nothing was written into the export.
    assert_same_model(score.Model(run / "whole2"), run / "whole2")


def test_what_is_no_change_of_the_model(run, tmp_path):
    delta = export(run, tmp_path / "delta", "--step", 4, "--since", 2)
    for folder, update, message in (
        ("whole4", delta, r"since step 2, but the model is of step 4"),
        ("whole2", run / "whole4", "is a whole export"),
    ):
        with pytest.raises(ValueError, match=message):
            score.Model(run / folder).update(update)
    with pytest.raises(ValueError, match="has changes alone"):
        score.Model(delta)

    def refused(*args) -> str:
        outcome = embark("export", run, "--out", tmp_path / "new", *args)
        assert outcome.code == 1
        assert not (tmp_path / "new").exists()
        return outcome.err

    assert "no complete checkpoint of step 3" in refused("--since", 3)
    assert "--since nope: must be a step, or the folder" in refused("--since", "nope")
    assert "later than the step 2" in refused("--since", 4, "--step", 2)
    other = shutil.copytree(run / "whole2", tmp_path / "other")
    sign(other, lambda description: description["tables"]["city"].update(rows=100))
    assert "has tables of another model" in refused("--since", other)


def city_keys(change):
    """Changes the row numbers of a delta's file."""

    def damage(delta: Path) -> None:
        path = delta / "tables/city.safetensors"
        arrays = load_file(path)
        save_file(arrays | {"keys": change(arrays["keys"].copy())}, path)
        sign(delta)

    return damage


def set_first(key: int):
    def change(keys):
        keys[0] = key
        return keys

    return change


@pytest.mark.parametrize(
    "damage",
    [
        lambda delta: (delta / "tables/city.safetensors").write_bytes(b"12345678"),
        lambda delta: (delta / "dense.safetensors").unlink(),
        lambda delta: sign(delta, lambda it: it["tables"]["city"].update(file="../x")),
        city_keys(set_first(-1)),
        city_keys(lambda keys: keys + 200),
        city_keys(lambda keys: keys[::-1].copy()),
        city_keys(lambda keys: keys[:-1]),
    ],
)
def test_damaged_changes_change_nothing(run, tmp_path, damage):
    delta = export(run, tmp_path / "delta", "--step", 4, "--since", 2)
    damage(delta)
    model = score.Model(run / "whole2")
    with pytest.raises(ExportError, match=re.escape(str(delta))):
        model.update(delta)
    assert_same_model(model, run / "whole2")


def test_a_scorer_is_updated(run, tmp_path, monkeypatch):
    delta: Any = export(run, tmp_path / "delta", "--step", 5, "--since", 2)

    monkeypatch.setattr("embark_jax.export.scorer.RowEncoder", BatchesAsRows)
    config = reading.load(run / "config.yaml")
    batch = experiment.build(config).training_data.train_batch(30, 16)
    for folder in (run / "whole2", run):
        scorer = load_scorer(folder, 2 if folder == run else None)
        before = scorer.predict(batch)
        scorer.update(delta)
        assert scorer.step == 5
        expected = load_scorer(run / "whole5").predict(batch)
        np.testing.assert_array_equal(scorer.predict(batch), expected)
        assert (before != expected).any()
