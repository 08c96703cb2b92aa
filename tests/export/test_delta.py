"""A whole export and the deltas after it are the later whole export."""

import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file

from embark_jax.checkpoint import Checkpointer
from embark_jax.config import reading
from embark_jax.data import DataError
from embark_jax.export import ExportError, IdScorer, load_id_scorer, load_scorer
from embark_jax.run import experiment
from tests import runs
from tests.days import config_of, prepare_days, table_of
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
    user: {rows: 400, slots: 30, max_slots: 30, evicted: discard}
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
    return trained(tmp_path_factory.mktemp("run"))


def trained(workdir: Path, *overrides: str) -> Path:
    config = reading.load(runs.write_config(workdir, CONFIG), overrides)
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
    done("export", workdir, "--out", out, "--no-onnx", *args)
    return out


def assert_same_model(model: IdScorer, folder: Path) -> None:
    """All that a whole export has, and zeros for keys without a row."""
    expected = load_id_scorer(folder)
    assert model.step == expected.step
    for name in ("item", "city"):
        ids = np.arange(len(expected.tables[name].values))
        np.testing.assert_array_equal(
            model.tables[name][ids], expected.tables[name][ids]
        )
    users, others = model.tables["user"], expected.tables["user"]
    for keys in (users.keys, others.keys):
        assert keys is not None
        keys = np.append(keys, 2**62)
        np.testing.assert_array_equal(others[keys], users[keys])
    assert not users[np.array([2**62])].any()
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(64, 2)).astype(np.float32)
    ids = {name: rng.integers(200, size=(64, 1)) for name in ("user", "item", "city")}
    np.testing.assert_array_equal(model.logits(dense, ids), expected.logits(dense, ids))


@pytest.mark.parametrize("row_format", ["float32", "int8"])
def test_a_whole_export_and_deltas_are_the_later_whole_export(
    run, row_format, tmp_path
):
    base, later, last = (
        export(run, tmp_path / f"{step}", "--step", step, "--rows", row_format)
        for step in STEPS
    )
    since = "--rows", row_format, "--since", base
    first = export(run, tmp_path / "first", "--step", 4, *since)
    second = export(run, tmp_path / "second", *since, "--since", first)
    city = load_file(first / "tables/city.safetensors")
    before, after = (
        load_file(folder / "tables/city.safetensors")["rows"]
        for folder in (base, later)
    )
    changed = np.flatnonzero((before != after).any(axis=1))
    assert city["keys"].tolist() == changed.tolist()
    assert 0 < len(changed) <= 2 * 16  # two steps of 16 samples
    forgotten = set(load_id_scorer(base).tables["user"].keys)
    forgotten -= set(load_id_scorer(later).tables["user"].keys)
    assert forgotten <= set(load_file(first / "tables/user.safetensors")["keys"])
    assert forgotten
    assert_same_model(load_id_scorer(base, deltas=[first]), later)
    assert_same_model(load_id_scorer(base, deltas=[first, second]), last)
    assert_same_model(load_id_scorer(base), base)  # its files are as they were


def test_a_delta_names_what_it_follows(run, tmp_path):
    """A scorer refuses the changes of another run, of another step, and of another
    order, and says which export they follow."""
    other = trained(tmp_path, "seed=1")
    since = "--since", run / "whole2"
    first = export(run, tmp_path / "first", "--step", 4, *since)
    second = export(run, tmp_path / "second", *since, "--since", first)
    others = export(
        other, tmp_path / "others", "--step", 4, "--since", other / "whole2"
    )
    for base, deltas, message in (
        ("whole2", [others], r"others: follows the export \w{32}, must follow \w{32}"),
        (
            "whole4",
            [second],
            r"second: follows the export \w{32}, must follow \w{32}; give a whole",
        ),
        ("whole2", [second, first], "second: follows the export"),
        ("whole2", [first, first], "first: follows the export"),
        ("whole2", [run / "whole4"], "whole4: follows the export none, since it is"),
        (
            first,
            [],
            r"follows the export \w{32}, must follow none; give a whole export",
        ),
    ):
        with pytest.raises(ExportError, match=message):
            load_id_scorer(run / base, deltas=deltas)

    def refused(*args) -> str:
        outcome = embark("export", run, "--out", tmp_path / "new", *args)
        assert outcome.code == 1
        assert not (tmp_path / "new").exists()
        return outcome.err

    assert "must follow" in refused(*since, "--since", second)
    assert "No such file" in refused("--since", tmp_path)
    assert "row_format is float32 in" in refused(*since, "--rows", "int8")
    for change, message in (
        ({"rows": 200, "dim": 8}, "tables.city.dim is 8 in"),
        ({"rows": 201, "dim": 4}, "tables.city.rows is 201 in"),
        ({"rows": None, "dim": 4}, "tables.city.dynamic is True in"),
    ):
        sign(others, lambda it, city=change: it["tables"].update(city=city))
        sign(others, lambda it: it.update(follows=None))
        assert message in refused("--since", others)


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
        lambda delta: sign(delta, lambda it: it["tables"]["city"].update(rows=10**12)),
        lambda delta: sign(delta, lambda it: it["tables"]["city"].update(dim=5)),
        city_keys(set_first(-1)),
        city_keys(lambda keys: keys + 200),
        city_keys(lambda keys: keys[::-1].copy()),
        city_keys(lambda keys: keys[:-1]),
    ],
)
def test_a_damaged_delta_is_refused(run, tmp_path, damage):
    since = "--since", run / "whole2"
    delta = export(run, tmp_path / "delta", "--step", 4, *since)
    damage(delta)
    with pytest.raises(DataError, match=re.escape(str(delta))):
        load_id_scorer(run / "whole2", deltas=[delta])


@pytest.mark.slow
def test_vocabularies_and_tables_grow_with_deltas(tmp_path):
    """Three runs on a day each, each from the one before; raw rows of all days, and of
    one that no run has seen, are scored as by the whole export of each day."""
    prepared, rows = prepare_days(tmp_path), tmp_path / "rows.parquet"
    rows.mkdir()
    for day in range(4):
        pq.write_table(table_of(day), rows / f"{day}.parquet")
    base, deltas = tmp_path / "whole 0", []
    for day in range(3):
        data = f"data={{kind: prepared, path: {prepared / f'day {day}'}}}"
        # Tables grow with the vocabulary.
        overrides = [data, "embedding.tables={user: {}, item: {}}", "train.steps=3"]
        if day:
            overrides.append(f"train.init_from={tmp_path / f'run {day - 1}'}")
        workdir = tmp_path / f"run {day}"
        done("train", config_of(tmp_path, prepared), *overrides, "--workdir", workdir)
        whole = export(workdir, tmp_path / f"whole {day}")
        if day:
            since = [word for each in (base, *deltas) for word in ("--since", each)]
            deltas.append(export(workdir, tmp_path / f"delta {day}", *since))
        scorer, expected = load_scorer(base, deltas=deltas), load_scorer(whole)
        assert scorer.step == expected.step == 3 * (day + 1)
        found = scorer.predict(rows)
        np.testing.assert_array_equal(found, expected.predict(rows))
    assert load_scorer(base).predict(rows).tolist() != found.tolist()
    out = tmp_path / "scores.parquet"
    words = [word for delta in deltas for word in ("--delta", delta)]
    outcome = done("predict", base, *words, "--in", rows, "--out", out)
    assert "by the model of step 9" in outcome.out
    np.testing.assert_array_equal(pq.read_table(out)["probability"], found)
