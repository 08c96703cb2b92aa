"""A whole export and the changes after it are the later whole export."""

import re
import shutil
from pathlib import Path
from typing import Any

import chex
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from embark_jax.checkpoint import Checkpointer
from embark_jax.config import reading
from embark_jax.data import DataError
from embark_jax.export import ExportError, IdScorer, load_id_scorer
from embark_jax.export.run_scorer import load_run_scorer
from embark_jax.run import experiment
from tests import runs
from tests.export.changed import sign
from tests.runs import done, embark

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
    done("export", workdir, "--out", out, *args)
    return out


def assert_same_model(model: IdScorer, folder: Path) -> None:
    """All that a whole export has, and initial rows elsewhere."""
    expected = load_id_scorer(folder)
    assert model.step == expected.step
    for name in ("item", "city"):
        np.testing.assert_array_equal(
            model.tables[name].values, expected.tables[name].values
        )
    users, others = model.tables["user"], expected.tables["user"]
    for keys in (users.keys, others.keys):
        assert keys is not None
        keys = np.append(keys, 2**62)
        np.testing.assert_array_equal(others[keys], users[keys])
    chex.assert_trees_all_equal(
        dict(model.params), load_file(folder / "dense.safetensors")
    )
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(64, 2)).astype(np.float32)
    ids = {name: rng.integers(200, size=(64, 1)) for name in ("user", "item", "city")}
    np.testing.assert_array_equal(model.logits(dense, ids), expected.logits(dense, ids))


@pytest.mark.parametrize("since", ["2", "checkpoints/2", "whole2"])
def test_a_whole_export_and_changes_are_the_later_whole_export(run, since, tmp_path):
    if since != "2":
        since = run / since
    delta = export(run, tmp_path / "delta", "--step", 4, "--since", since)
    assert not list(delta.glob("*.onnx"))
    assert not (delta / "dense.jax").exists()
    city = load_file(delta / "tables/city.safetensors")
    assert 0 < len(city["keys"]) <= 2 * 16  # two steps of 16 samples
    before, after = (
        load_file(run / f"whole{step}/tables/city.safetensors")["rows"]
        for step in STEPS[:2]
    )
    changed = np.flatnonzero((before != after).any(axis=1))
    assert city["keys"].tolist() == changed.tolist()
    model = load_id_scorer(run / "whole2")
    model.update(delta)
    assert_same_model(model, run / "whole4")
    further = export(run, tmp_path / "further", "--since", delta)
    model.update(further)
    assert_same_model(model, run / "whole5")
    # Nothing was written into the export.
    assert_same_model(load_id_scorer(run / "whole2"), run / "whole2")


def test_changes_of_rows_in_eight_bits(run, tmp_path):
    int8 = "--rows", "int8"
    whole, later = (
        export(run, tmp_path / f"whole{step}", "--step", step, *int8)
        for step in STEPS[:2]
    )
    delta = export(run, tmp_path / "delta", "--step", 4, "--since", whole, *int8)
    city = load_file(delta / "tables/city.safetensors")
    assert 0 < len(city["keys"]) <= 2 * 16
    assert city["rows"].dtype == np.int8
    model = load_id_scorer(whole)
    model.update(delta)
    assert_same_model(model, later)
    delta = export(run, tmp_path / "float32", "--step", 4, "--since", whole)
    with pytest.raises(ExportError, match="float32, but the model has them in int8"):
        load_id_scorer(whole).update(delta)


def test_what_is_no_change_of_the_model(run, tmp_path):
    delta = export(run, tmp_path / "delta", "--step", 4, "--since", 2)
    for folder, update, message in (
        ("whole4", delta, r"since step 2, but the model is of step 4"),
        ("whole2", run / "whole4", "is a whole export"),
    ):
        with pytest.raises(ValueError, match=message):
            load_id_scorer(run / folder).update(update)
    with pytest.raises(ValueError, match="has changes since step 2 alone"):
        load_id_scorer(delta)

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
        lambda delta: sign(delta, lambda it: it["files"][0].update(file="../x")),
        city_keys(set_first(-1)),
        city_keys(lambda keys: keys + 200),
        city_keys(lambda keys: keys[::-1].copy()),
        city_keys(lambda keys: keys[:-1]),
    ],
)
def test_damaged_changes_change_nothing(run, tmp_path, damage):
    delta = export(run, tmp_path / "delta", "--step", 4, "--since", 2)
    damage(delta)
    model = load_id_scorer(run / "whole2")
    with pytest.raises(DataError, match=re.escape(str(delta))):
        model.update(delta)
    assert_same_model(model, run / "whole2")


def test_a_scorer_of_a_run_is_updated(run, tmp_path):
    delta: Any = export(run, tmp_path / "delta", "--step", 5, "--since", 2)
    config = reading.load(run / "config.yaml")
    batch = experiment.build(config).training_data.train_batch(30, 16)
    scorer = load_run_scorer(run, 2)
    before = scorer.logits(batch.dense, batch.ids)
    scorer.update(delta)
    assert scorer.step == 5
    expected = load_run_scorer(run).logits(batch.dense, batch.ids)
    np.testing.assert_array_equal(scorer.logits(batch.dense, batch.ids), expected)
    assert (before != expected).any()
