"""From a raw CSV to scored raw rows: three commands, and ten lines of config."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow.csv
import pytest

import embark_jax as ej
from tests import runs
from tests.prepare.raw_files import write_table
from tests.runs import done, embark

pytestmark = pytest.mark.slow

CONFIG = """\
name: own
data: {kind: prepared, path: DATA}
model: {kind: dcn, cross_layers: 1, deep: [8], batch_norm: true}
embedding: {dim: 4, optimizer: {kind: adam, learning_rate: 0.02}}
dense_optimizer: {kind: adagrad, learning_rate: 0.02}
train: {batch_size: 64, epochs: 3}
"""


class Trained:
    """A run on made-up ratings, and its test rows as files."""

    def __init__(self, folder: Path):
        rng = np.random.default_rng(0)
        rows = []
        for i in range(2000):
            user = rng.integers(40)
            genres = rng.choice(list("abcdef"), rng.integers(1, 4), replace=False)
            match = user % 2 + ("a" in genres) + ("b" in genres)
            rows.append(
                {
                    "user": f"u{user}",
                    "film": int(rng.integers(100)),
                    "genres": "|".join(genres),
                    "age": "" if i % 11 == 0 else int(rng.integers(18, 80)),
                    "price": f"{rng.lognormal(2):.3f}",
                    "stars": 1 + match + int(rng.random() < 0.3),
                    "when": i,
                }
            )
        self.rows, self.test = rows, rows[1900:]
        self.raw = write_table(folder / "ratings.csv", rows)
        self.new = write_table(folder / "new.csv", self.test)
        self.workdir, self.data = folder / "run", folder / "data"
        config = runs.write_config(folder, CONFIG.replace("DATA", str(self.data)))
        columns = "label=stars positive_from=3 time=when dense.price=log "
        columns += "'features.genres={separator: \"|\"}' "
        columns += "'dense.age={transform: quantiles, quantiles: 6}'"
        done(f"data prepare csv --raw {self.raw} --out {self.data} {columns}")
        done("train", config, "--workdir", self.workdir)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Trained:
    return Trained(tmp_path_factory.mktemp("own"))


def probabilities(folder: Path, rows: Path, out: Path) -> np.ndarray:
    done("predict", folder, "--in", rows, "--out", out)
    return pyarrow.csv.read_csv(out)["probability"].to_numpy()


def test_raw_rows_are_scored_as_the_test_set_was(trained, tmp_path):
    """The rows that the run was tested on, from the file: the same metrics."""
    out = tmp_path / "scores.csv"
    outcome = done("predict", trained.workdir, "--in", trained.new, "--out", out)
    final = runs.final(trained.workdir)
    assert final["test_samples"] == len(trained.test)
    assert final["test_auc"] > 0.75  # and there is something to be scored
    said = f"AUC {final['test_auc']:.5f}, loss {final['test_log_loss']:.5f}"
    assert said in outcome.out
    found = pyarrow.csv.read_csv(out)["probability"].to_numpy()
    positive = np.array([row["stars"] >= 3 for row in trained.test])
    loss = -np.log(np.where(positive, found, 1 - found)).mean()
    assert loss == pytest.approx(final["test_log_loss"], rel=1e-5)


def test_an_export_needs_neither_run_nor_data(trained, tmp_path):
    expected = probabilities(trained.workdir, trained.new, tmp_path / "a.csv")
    done("export", trained.workdir, "--out", tmp_path / "export")
    elsewhere = shutil.copytree(tmp_path / "export", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "export")
    found = probabilities(elsewhere, trained.new, tmp_path / "b.csv")
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_several_labels_have_their_own_names_everywhere(trained, tmp_path):
    rows = [
        {
            "user": row["user"],
            "age": row["age"],
            "like": like if i % 5 else "",  # a label may be missing
            "love": like * (i % 2),
        }
        for i, row in enumerate(trained.rows)
        for like in [int(row["stars"] >= 3)]
    ]
    raw, data = write_table(tmp_path / "likes.csv", rows), tmp_path / "data"
    model = "{kind: mmoe, tasks: [like, love], experts: 2, expert: [8], tower: [4]}"
    text = CONFIG.replace("DATA", str(data)).replace("epochs: 3", "epochs: 1")
    text = text.replace(
        text[text.index("{kind: dcn") : text.index("\nembedding")], model
    )
    config, run, out = runs.write_config(tmp_path, text), tmp_path / "run", "scores.csv"
    labels = "labels=[like, love]"
    done("data", "prepare", "csv", labels, "--raw", raw, "--out", data)
    given = [
        batch.labels
        for split in ("train", "validation", "test")
        for batch in ej.PreparedData(data).in_file_order(split, 100)
    ]
    missing = np.isnan(np.concatenate(given)).sum(axis=0)
    assert missing.tolist() == [len(rows[::5]), 0]
    done("train", config, "train.task_weights={love: 0.5}", "--workdir", run)
    final = runs.final(run)
    tasks = [final["test_auc/like"], final["test_auc/love"]]
    assert final["test_auc"] == pytest.approx(np.mean(tasks))
    expected = ej.load_scorer(run).predict(raw)
    assert expected.shape == (len(rows), 2)
    done("export", run, "--out", tmp_path / "export")
    outcome = done("predict", tmp_path / "export", "--in", raw, "--out", tmp_path / out)
    assert "compared with love: AUC" in outcome.out
    found = pyarrow.csv.read_csv(tmp_path / out)
    assert found.column_names == ["like", "love"]
    np.testing.assert_allclose(np.stack(found.columns, axis=1), expected, rtol=1e-6)
    outcome = embark("train", config, "model.tasks=[love, like]", "--workdir", tmp_path)
    runs.assert_refused(
        outcome, "must be the labels of the data, in their order: like, love"
    )
    outcome = embark("train", config, "model={kind: dcn}", "--workdir", tmp_path / "x")
    assert "dcn is for one label, but the data have like, love" in outcome.err


def test_sigterm_removes_the_temporary_folder(trained, tmp_path):
    runs.end_by_sigterm(
        ["predict", trained.workdir, "--in", trained.new],
        lambda: any(tmp_path.iterdir()),
        TMPDIR=str(tmp_path),
    )
    assert not any(tmp_path.iterdir())
