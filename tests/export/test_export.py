"""Exports: what another program reads out of them scores as the trainer does."""

from __future__ import annotations

import ast
import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import export as jax_export
from safetensors.numpy import load_file

import embark_jax as ej
from embark_jax import models
from embark_jax._base.config import kind_of, sections
from embark_jax.checkpoint import Checkpointer
from embark_jax.config import models as configs
from embark_jax.config import reading
from embark_jax.data import Batch
from embark_jax.embedding import reference
from embark_jax.export import score
from embark_jax.export.scoring import serialized_scoring
from embark_jax.run import experiment
from tests import runs
from tests.runs import embark
from tests.thorough import thorough

CONFIG = """\
name: exported
data: {kind: synthetic, dense_features: 3, train_samples: 4096, test_samples: 100}
model: {kind: dlrm_dcnv2, bottom: [8], top: [1], cross_layers: 2, cross_rank: 5}
mesh: {nodes: 1, gpus_per_node: 2}
embedding:
  dim: 4
  tables:
    user: {rows: 1001, cluster: rb, row_shards: 3, devices: [0, 1, 1]}
    item: {rows: 600, cluster: ub}
    city: {rows: 21, cluster: dp}
  features:
    user: {}
    items: {table: item, hotness: 4, pooling: mean, weighted: true}
    bought: {table: item, hotness: 3, weighted: true}
    cities: {table: city, hotness: 3, pooling: mean}
train: {batch_size: 64}
"""


class Exported(NamedTuple):
    """A run, its export, and the trainer's tables, logits and batch."""

    workdir: Path
    folder: Path
    tables: dict[str, np.ndarray]
    batch: Batch
    logits: np.ndarray


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Exported:
    folder = tmp_path_factory.mktemp("run")
    config = reading.load(runs.write_config(folder, CONFIG))
    setup = experiment.build(config)
    trainer = setup.trainer()
    reading.save(config, folder / "config.yaml")
    with Checkpointer(folder / "checkpoints", setup.identity, keep=2) as checkpoints:
        for step in (1, 2):
            params = drawn(trainer.state.params, step)
            counted = jnp.full_like(trainer.state.step, step)
            trainer.restore(trainer.state._replace(params=params, step=counted))
            checkpoints.save(trainer.state, step, trainer.embeddings, {})
    ((batch, logits), *_) = trainer.predict(setup.dataset.test_batches(64))
    tables = {
        table.name: ej.export_table(
            trainer.embeddings, trainer.state.storages, table.name
        )
        for table in setup.tables
    }
    outcome = embark("export", folder, "--out", folder / "exported")
    assert (outcome.code, outcome.err) == (0, "")
    return Exported(folder, folder / "exported", tables, batch, np.asarray(logits))


def drawn(params: Any, seed: int) -> Any:
    """Dense parameters as training might leave them: no bias is zero."""
    generator = np.random.default_rng(seed)

    def draw(array):
        values = generator.normal(scale=0.5, size=array.shape).astype(np.float32)
        return jax.device_put(values, array.sharding)

    return jax.tree.map(draw, params)


def test_tables_are_logical_and_exact(exported):
    description = json.loads((exported.folder / "model.json").read_text())
    assert description["step"] == 2
    assert description["dense_features"] == 3
    for name, expected in exported.tables.items():
        found = load_file(exported.folder / description["tables"][name]["file"])
        np.testing.assert_array_equal(found.pop(name), expected)
        assert not found
    assert len(list((exported.folder / "tables").iterdir())) == len(exported.tables)


def test_numpy_alone_gives_the_logits(exported, tmp_path):
    batch, samples = exported.batch, tmp_path / "samples.npz"
    ids = {f"ids/{name}": each for name, each in batch.ids.items()}
    weights = {f"weights/{name}": each for name, each in batch.weights.items()}
    np.savez(samples, dense=batch.dense, **ids, **weights)
    # An interpreter that sees nothing of this package.
    script = [sys.executable, "-I", exported.folder / "score.py", samples]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    logits = np.array(done.stdout.split(), np.float32)
    np.testing.assert_allclose(logits, exported.logits, rtol=1e-5, atol=1e-5)


def test_the_scoring_script_imports_numpy_alone(exported):
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse((exported.folder / "score.py").read_text()))
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    }
    assert imported - sys.stdlib_module_names == {"numpy"}


def call_jax(exported: Exported, batch: Batch) -> np.ndarray:
    """Scores with the serialized function and nothing of this package."""
    folder = exported.folder
    scoring = jax_export.deserialize(bytearray((folder / "scoring.jax").read_bytes()))
    params = load_file(folder / "dense.safetensors")
    tables = {}
    for path in (folder / "tables").iterdir():
        tables |= load_file(path)
    ids, weights = dict(batch.ids), dict(batch.weights)
    return np.asarray(scoring.call(params, tables, batch.dense, ids, weights))


@pytest.mark.parametrize("samples", [1, 64])
def test_the_serialized_function_gives_the_logits(exported, samples):
    found = call_jax(exported, head(exported.batch, samples))
    expected = exported.logits[:samples]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def head(batch: Batch, samples: int) -> Batch:
    """The first samples, in arrays of their own."""
    return dataclasses.replace(
        batch,
        dense=batch.dense[:samples].copy(),
        ids={name: ids[:samples].copy() for name, ids in batch.ids.items()},
        labels=batch.labels[:samples],
        weights={name: each[:samples] for name, each in batch.weights.items()},
    )


@pytest.mark.parametrize("bad", [21, -2])
def test_an_id_out_of_range_is_not_taken_for_another(exported, bad):
    batch = head(exported.batch, 2)
    batch.ids["cities"][1, 0] = bad
    with pytest.raises(ValueError, match=r"'cities': ids must be -1 \(padding\) to 20"):
        score.Model(exported.folder).logits(batch.dense, batch.ids, batch.weights)
    good, wrong = call_jax(exported, batch)
    assert np.isfinite(good)
    assert np.isnan(wrong)


def test_an_older_checkpoint_is_exported_by_its_step(exported, tmp_path):
    outcome = embark("export", exported.workdir, "--step", 1, "--out", tmp_path / "out")
    assert (outcome.code, outcome.err) == (0, "")
    description = json.loads((tmp_path / "out" / "model.json").read_text())
    assert description["step"] == 1


def test_what_cannot_be_exported(exported, tmp_path):
    def refused(workdir, out, *args) -> str:
        outcome = embark("export", workdir, "--out", out, *args)
        assert outcome.code == 1
        assert "Traceback" not in outcome.err
        return outcome.err

    new = tmp_path / "new"
    before = runs.snapshot(exported.folder)
    assert "must be a new folder" in refused(exported.workdir, exported.folder)
    assert runs.snapshot(exported.folder) == before
    assert "no complete checkpoint of step 3" in refused(
        exported.workdir, new, "--step", 3
    )
    assert "No such file" in refused(tmp_path, new)
    shutil.copy(exported.workdir / "config.yaml", tmp_path)
    assert "no such folder" in refused(tmp_path, new)
    assert not new.exists()


@pytest.mark.slow
def test_a_run_that_stopped_early_is_exported_at_its_best(exported, tmp_path):
    run = tmp_path / "run"
    for name in ("config.yaml", "checkpoints"):
        source = exported.workdir / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        run.mkdir(exist_ok=True)
        copy(source, run / name)
    records = [{"step": 1, "loss": 0.5}, {"step": 2, "final": True, "best_step": 1}]
    lines = [json.dumps(record) for record in records]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    done = embark("export", run, "--out", tmp_path / "out")
    assert (done.code, done.err) == (0, "")
    assert json.loads((tmp_path / "out" / "model.json").read_text())["step"] == 1


MODELS = (
    configs.DLRMConfig(bottom=(8, 4), top=(8, 1)),
    configs.DLRMConfig(bottom=(4,), top=(1,)),
    configs.DLRMConfig(bottom=(8, 4), top=(8, 1), batch_norm=True, dropout=0.5),
    configs.DLRMDCNv2Config(bottom=(), top=(1,), cross_layers=2, cross_rank=5),
    configs.DLRMDCNv2Config(
        structure="parallel", bottom=(4,), top=(8, 5, 1), cross_rank=5
    ),
    configs.DCNConfig(cross_layers=2, deep=(8,)),
    configs.WideDeepConfig(deep=(8,)),
    configs.DeepFMConfig(deep=(8,)),
    configs.TBSMConfig(
        history={"recent": "item"}, bottom=(4,), event=(5,), attention=(6,), top=(7, 1)
    ),
    configs.AutoIntConfig(attention=(6, 8), heads=2, deep=(5,), batch_norm=True),
    configs.AutoIntConfig(attention=(6,), heads=3),
    configs.FinalMLPConfig(stream1=(8,), stream2=(6, 4), heads=2, batch_norm=True),
    configs.FinalMLPConfig(stream1=(8,), stream2=(4,), gate=(5,), context1=("user",)),
    configs.MMoEConfig(tasks=("a", "b"), experts=3, expert=(8,), tower=(5,)),
    configs.MMoEConfig(tasks=("a", "b"), experts=1, expert=(8,), batch_norm=True),
    configs.DINConfig(history={"recent": "item"}, activation=(5, 4), deep=(6,)),
    configs.TwoTowerConfig(items=("item",), tower=(6, 4)),
)


def test_every_model_has_a_numpy_twin():
    named = {kind_of(each) for each in sections(configs.ModelConfig)}
    kinds = named - {kind_of(configs.OwnModelConfig)}
    assert kinds == score.MODELS.keys() == {each.kind for each in MODELS}


@pytest.mark.parametrize("dense_features", thorough([3, 0], [3]))
@pytest.mark.parametrize("config", MODELS, ids=lambda config: config.kind)
def test_every_model_scores_alike_in_numpy_and_serialized(config, dense_features):
    generator = np.random.default_rng(0)
    specs = [ej.TableSpec("user", 30, 4), ej.TableSpec("item", 50, 4)]
    features = [
        ej.FeatureSpec("user"),
        ej.FeatureSpec("item", hotness=3, pooling="mean"),
        ej.FeatureSpec("recent", "item", hotness=3, pooling="none"),
    ][: 3 if config.kind in ("tbsm", "din") else 2]
    tables = {
        spec.name: generator.normal(size=(spec.rows, spec.dim)).astype(np.float32)
        for spec in specs
    }
    ids = {
        f.name: generator.integers(-1, 30, (7, f.hotness), np.int32) for f in features
    }
    dense = generator.normal(size=(7, dense_features)).astype(np.float32)

    embeddings = {
        name: value.astype(np.float32)
        for name, value in reference.lookup(tables, features, ids, {}).items()
    }
    shapes = {name: value.shape[1:] for name, value in embeddings.items()}
    model = models.build(config, shapes, dense_features, nnx.Rngs(0))
    model.eval()
    state = drawn(nnx.state(model, (nnx.Param, nnx.BatchStat)), 0)
    state = jax.tree.map_with_path(  # a variance is positive
        lambda path, each: 0.5 + each**2 if "var" in str(path) else each, state
    )
    nnx.update(model, state)
    expected = np.asarray(model(dense, jax.tree.map(jnp.asarray, embeddings)))

    params = {
        ".".join(map(str, path)): np.asarray(param[...])
        for path, param in nnx.to_flat_state(state)
    }
    forward = score.MODELS[config.kind]
    arguments = config.model_dump(mode="json"), dense, dict(sorted(embeddings.items()))
    found = forward(params, *arguments)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)

    scoring = serialized_scoring(config, specs, features, dense_features)
    found = jax_export.deserialize(bytearray(scoring)).call(
        params, tables, dense, ids, {}
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
