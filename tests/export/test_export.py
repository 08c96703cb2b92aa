"""Exports: what another program reads out of them scores as the trainer does."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import onnxruntime
import pytest
from jax import export as jax_export
from safetensors.numpy import load_file

import embark_jax as ej
from embark_jax.checkpoint import Checkpointer
from embark_jax.config import reading
from embark_jax.data import Batch
from embark_jax.export import ExportError, load_id_scorer
from embark_jax.export.dense_model import DenseModel
from embark_jax.export.jax_layers import serialized
from embark_jax.export.onnx_graph import draw_inputs, write_graphs
from embark_jax.export.onnx_layers import onnx_layers
from embark_jax.run import experiment
from tests import runs
from tests.export.without_jax import score_without_jax
from tests.models import small
from tests.runs import done, embark
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
    shop: {rows: 4000, slots: 200, max_slots: 400, init_scale: 0.4, dtype: bfloat16}
  features:
    user: {}
    items: {table: item, hotness: 4, pooling: mean, weighted: true}
    bought: {table: item, hotness: 3, weighted: true}
    cities: {table: city, hotness: 3, pooling: mean}
    shops: {table: shop, hotness: 2}
    seller: {table: shop}
train: {batch_size: 64}
"""
SHOPS = "shops", "seller"
FAR = 2**62 + 2**33


class Exported(NamedTuple):
    """A run, its export, its trainer, and a batch of training with its logits."""

    workdir: Path
    folder: Path
    trainer: ej.Trainer
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
            batch = with_far_shops(setup.dataset.train_batch(step, 64))
            list(trainer.iterate_batches([batch]))
            state = trainer.whole_state()
            checkpoints.save(state, step, trainer.embeddings, {})
    ((batch, logits),) = trainer.predict([batch])
    done("export", folder, "--out", folder / "exported")
    return Exported(folder, folder / "exported", trainer, batch, np.asarray(logits))


def with_far_shops(batch: Batch) -> Batch:
    """With shops whose keys need 63 bits."""
    ids = {
        name: np.where(each >= 0, each.astype(np.int64) + FAR, -1)
        if name in SHOPS
        else each
        for name, each in batch.ids.items()
    }
    return dataclasses.replace(batch, ids=ids)


def test_tables_are_logical_and_exact(exported):
    description = json.loads((exported.folder / "model.json").read_text())
    assert description["step"] == 2
    assert description["dense_features"] == 3
    assert description["tables"]["shop"]["rows"] is None
    for name in description["tables"]:
        expected = exported.trainer.table(name)
        arrays = load_file(exported.folder / f"tables/{name}.safetensors")
        np.testing.assert_array_equal(arrays.pop("rows"), expected.rows)
        if name == "shop":
            np.testing.assert_array_equal(arrays.pop("keys"), expected.keys)
            assert expected.keys.min() >= FAR
        assert not arrays
    assert len(list((exported.folder / "tables").iterdir())) == 4


def test_an_export_is_scored_without_jax(exported, tmp_path):
    logits = score_without_jax(exported.folder, exported.batch, tmp_path)
    np.testing.assert_allclose(logits, exported.logits, rtol=1e-5, atol=1e-5)
    batch = exported.batch
    logits = load_id_scorer(exported.workdir).logits(
        batch.dense, batch.ids, batch.weights
    )
    np.testing.assert_allclose(logits, exported.logits, rtol=1e-5, atol=1e-5)


def test_a_key_without_a_row_scores_as_one_of_zeros(exported):
    """As no key does, where rows are summed."""
    batch, scorer = exported.batch, load_id_scorer(exported.folder)
    logits = [
        scorer.logits(
            batch.dense, {**batch.ids, "seller": np.full((64, 1), key)}, batch.weights
        )
        for key in (-1, FAR + 2**40, FAR - 1)
    ]
    for other in logits[1:]:
        np.testing.assert_array_equal(logits[0], other)
    none = [{name: x[:0] for name, x in y.items()} for y in (batch.ids, batch.weights)]
    assert scorer.logits(batch.dense[:0], *none).shape == (0,)
    assert np.abs(logits[0] - exported.logits).max() > 1e-3


def test_onnxruntime_and_numpy_are_enough(exported):
    """A program of one's own, as the page on exports shows it."""
    folder, batch = exported.folder, exported.batch
    features = json.loads((folder / "model.json").read_text())["features"]
    inputs = {"dense": batch.dense}
    for name, feature in features.items():
        table = load_file(folder / f"tables/{feature['table']}.safetensors")
        rows, ids = table["rows"], batch.ids[name]
        if "keys" in table:  # of all that are in this batch
            ids = np.where(ids < 0, -1, np.searchsorted(table["keys"], ids))
        factors = (ids >= 0) * batch.weights.get(name, np.float32(1))
        if feature["pooling"] == "mean":
            factors = factors / np.maximum(factors.sum(axis=1, keepdims=True), 1e-9)
        pooled = np.einsum("bhd,bh->bd", rows[ids], factors)
        inputs[f"embeddings.{name}"] = pooled.astype(np.float32)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    (logits,) = session.run(["logits"], inputs)
    np.testing.assert_allclose(logits, exported.logits, rtol=1e-5, atol=1e-5)


def test_without_onnx_jax_scores(exported, tmp_path, monkeypatch):
    folder = tmp_path / "jax"
    said = done("export", exported.workdir, "--no-onnx", "--out", folder).out
    assert "`ej.load_id_scorer` scores ids" in said  # there are no raw rows
    assert not (folder / "model.onnx").exists()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    batch = exported.batch
    logits = load_id_scorer(folder).logits(batch.dense, batch.ids, batch.weights)
    np.testing.assert_allclose(logits, exported.logits, rtol=1e-5, atol=1e-5)
    with pytest.raises(ExportError, match=r"pip install .embark_jax\[onnx\]"):
        load_id_scorer(exported.folder)


@pytest.mark.parametrize("package", ["jax2onnx", "onnxruntime"])
def test_what_is_not_installed_is_named(exported, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    outcome = embark("export", exported.workdir, "--out", tmp_path / "out")
    runs.assert_refused(outcome, package, 'pip install "embark_jax[onnx]"', "--no-onnx")
    assert not (tmp_path / "out").exists()


def test_an_older_checkpoint_is_exported_by_its_step(exported, tmp_path):
    done("export", exported.workdir, "--step", 1, "--out", tmp_path / "out")
    description = json.loads((tmp_path / "out" / "model.json").read_text())
    assert description["step"] == 1


def draw_arrays(model: DenseModel) -> dict[str, np.ndarray]:
    """Arrays of dense layers as training might leave them: a variance is positive."""
    generator = np.random.default_rng(0)

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if "var" in name:
            return generator.uniform(0.5, 1.5, shape).astype(np.float32)
        scale = max(1, *shape[:1]) ** -0.5 if shape else 1.0
        return generator.normal(scale=scale, size=shape).astype(np.float32)

    return {name: draw(name, array.shape) for name, array in model.arrays.items()}


ONE_BY_ONE = "hstu", "dlrm_v4", "next_item"
"""Their graphs have a loop over samples, whose conversion by jax2onnx 0.17 uses a name
that JAX 0.12 has no longer."""
# One reads a sequence, one packs it, one has several labels.
QUICK = [(kind, {}) for kind in ("dlrm_dcnv2", "din", "next_item", "mmoe")]


@pytest.mark.parametrize(
    ("batch_norm", "dense_features"),
    thorough([(False, 3), (True, 0)], [(False, 3)], unpack=True),
)
@pytest.mark.parametrize(("kind", "changes"), thorough(small.CASES, QUICK, unpack=True))
def test_every_model_scores_alike_in_onnx_and_jax(
    kind, changes, batch_norm, dense_features, tmp_path
):
    section = small.KINDS[kind]
    if "batch_norm" in section.model_fields:
        changes = changes | {"batch_norm": batch_norm}
    config = small.small_config(section, dropout=0.5, **changes)
    model = DenseModel(config, small.TABLES, small.features_of(config), dense_features)
    params = draw_arrays(model)
    inputs = draw_inputs(model, 7)
    expected = np.asarray(jax.jit(model)(params, *inputs))
    assert np.isfinite(expected).all()

    scored = [
        jax_export.deserialize(bytearray(serialized(model))).call(params, *inputs)
    ]
    if kind in ONE_BY_ONE and jax.__version_info__ >= (0, 12):
        with pytest.raises(ExportError, match=r"cannot convert it: .* 'ClosedJaxpr'"):
            write_graphs(tmp_path, model, params)
    else:
        write_graphs(tmp_path, model, params)
        scored.append(onnx_layers(tmp_path / "model.onnx")(*inputs))
    for logits in scored:
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("kind", "changes"), small.CASES)
def test_every_model_takes_a_batch_of_unknown_size(kind, changes):
    config = small.small_config(small.KINDS[kind], **changes)
    model = DenseModel(config, small.TABLES, small.features_of(config), 3)
    (batch,) = jax_export.symbolic_shape("batch")
    logits = jax.eval_shape(model, model.arrays, *model.shapes(batch))
    assert logits.shape[0] == batch


def test_layers_in_bfloat16_are_scored_in_float32(tmp_path):
    """As near to the oracle as those that are float32 in training, too."""
    section = small.KINDS["dlrm_dcnv2"]
    logits = {}
    for dtype in ("float32", "bfloat16"):
        config = small.small_config(section, compute_dtype=dtype)
        model = DenseModel(config, small.TABLES, small.features_of(config), 3)
        params, folder = draw_arrays(model), tmp_path / dtype
        folder.mkdir()
        write_graphs(folder, model, params)
        inputs = draw_inputs(model, 5)
        logits[dtype] = onnx_layers(folder / "model.onnx")(*inputs)
    np.testing.assert_allclose(logits["bfloat16"], logits["float32"], rtol=1e-5)
