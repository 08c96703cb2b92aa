"""Items for users, from raw rows: as many hits as the run itself counted."""

import json
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

import embark_jax as ej
from embark_jax.config import reading
from embark_jax.data import DataError
from embark_jax.run.experiment import build, of_the_event
from tests import runs
from tests.prepare.raw_files import write_table
from tests.runs import assert_refused, done, embark

pytestmark = pytest.mark.slow

MODELS = {
    "next_item": "{kind: next_item, history: {past: film}, encoder: sasrec, layers: 1, "
    "every_position: true, uniform_negatives: 2}",
    "two_tower": "{kind: two_tower, items: [film], tower: [8], uniform_negatives: 2}",
}
CONFIG = """\
data: {kind: prepared, path: DATA}
model: MODEL
embedding: {dim: 8, optimizer: {kind: adagrad, learning_rate: 0.2}}
dense_optimizer: {kind: adagrad, learning_rate: 0.05}
train: {batch_size: 64, epochs: 4, retrieval: {at: [10], exclude: EXCLUDE}}
"""
FILMS = 60


class Trained:
    """A run on views of films, most of them of the group of the film before; test rows
    have users and films that training has not seen, and repeats."""

    def __init__(self, folder: Path, model: str, exclude: str):
        rng, rows = np.random.default_rng(0), []
        for i in range(1200):
            past = (rng.integers(0, FILMS // 4, 4) * 4 + i % 4).tolist()
            film = (
                past[0] if i % 5 == 0 else int(rng.integers(0, FILMS // 4) * 4 + i % 4)
            )
            is_new = i > 1080 and i % 17 == 16
            rows.append(
                {
                    "user": f"u{i % 40}",
                    "past": "|".join(f"f{each:03}" for each in past),
                    "film": f"new{i}" if is_new else f"f{film:03}",
                    "seen": int(i % 7 > 0),
                    "part": "train" if i < 1080 else "test",
                }
            )
        self.test = rows[1080:]
        raw = write_table(folder / "views.csv", rows)
        self.new = write_table(folder / "new.csv", self.test)
        columns = (
            'label=seen split=column=part \'features.past={separator: "|", table: film'
        )
        columns += ", sequence: true}'" if model == "next_item" else "}'"
        done(f"data prepare csv --raw {raw} --out {folder / 'data'} {columns}")
        text = CONFIG.replace("DATA", str(folder / "data"))
        text = text.replace("MODEL", MODELS[model]).replace("EXCLUDE", exclude)
        self.run = folder / "run"
        done("train", runs.write_config(folder, text), "--workdir", self.run)
        self.final = runs.final(self.run)

    def hit_rate(self, found: list[list[str]]) -> float:
        positive = [row["seen"] == 1 for row in self.test]
        hits = [
            row["film"] in films for row, films in zip(self.test, found, strict=True)
        ]
        return float(np.mean(np.array(hits)[positive]))


@pytest.fixture(scope="module", params=[*MODELS])
def trained(request, tmp_path_factory) -> Trained:
    exclude = "past" if request.param == "next_item" else "null"
    folder = tmp_path_factory.mktemp(request.param)
    return Trained(folder, request.param, exclude)


def test_hits_are_those_of_the_run(trained, tmp_path):
    """In each format, with a run and with exports, which have no code of the model."""
    hides = trained.final.get("test_repeats", 0) > 0
    done("export", trained.run, "--out", tmp_path / "onnx")
    done("export", trained.run, "--out", tmp_path / "jax", "--no-onnx")
    for folder in (trained.run, tmp_path / "onnx", tmp_path / "jax"):
        out = tmp_path / f"{folder.name}.jsonl"
        options = ("--exclude", "past") if hides else ()
        done("recommend", folder, "--in", trained.new, "--out", out, *options)
        found = [json.loads(line)["item"] for line in out.read_text().splitlines()]
        assert trained.hit_rate(found) == trained.final["test_hr@10"] > 0.3
        for row, films in zip(trained.test, found, strict=True):
            assert len({*films}) == 10
            assert not hides or not {*films} & {*row["past"].split("|")}
    short = write_table(
        tmp_path / "short.csv",
        [{k: row[k] for k in ("user", "past")} for row in trained.test],
    )
    for suffix, read in (
        (".csv", pyarrow.csv.read_csv),
        (".parquet", pyarrow.parquet.read_table),
    ):
        out = tmp_path / f"top{suffix}"
        user = "--user", "user"
        done("recommend", trained.run, "--in", short, "--out", out, *options, *user)
        table = read(out)
        assert table["item"].to_pylist() == [film for films in found for film in films]
        assert table["rank"].to_pylist() == [*range(1, 11)] * len(found)
        assert table["user"].to_pylist()[::10] == [row["user"] for row in trained.test]
    printed = done("recommend", trained.run, "--in", short, "--k", 2, *options, *user)
    rows = [line.split("\t") for line in printed.out.splitlines()]
    assert [int(rank) for _, rank, _, _ in rows] == [1, 2] * len(found)
    assert [film for *_, film, _ in rows] == [
        str(f) for films in found for f in films[:2]
    ]


def test_vectors_are_those_that_are_compared(trained):
    scorer = ej.load_scorer(trained.run)
    films, vectors = scorer.item_vectors()
    users = scorer.user_vectors(trained.new)
    for each in (vectors, users):  # the model compares by cosine
        np.testing.assert_allclose(np.linalg.norm(each, axis=1), 1, rtol=1e-5)
    assert set(films) == {f"f{i:03}" for i in range(FILMS)}
    found, scores = scorer.recommend(trained.new, 3)
    products = users @ vectors.T
    np.testing.assert_allclose(scores, -np.sort(-products)[:, :3], rtol=1e-4, atol=1e-5)
    assert [films[i] for i in np.argmax(products, axis=1)] == [f[0] for f in found]
    logits = scorer.predict(trained.new)  # a score over the temperature, no probability
    known = [i for i, row in enumerate(trained.test) if row["film"] in films]
    own = [products[i, films.index(trained.test[i]["film"])] for i in known]
    np.testing.assert_allclose(
        logits[known], np.divide(own, 0.05), rtol=1e-3, atol=1e-3
    )


def test_users_are_searched_in_parts_that_progress_tells(trained, monkeypatch):
    scorer = ej.load_scorer(trained.run)
    found, scores = scorer.recommend(trained.new, 3, "past")
    monkeypatch.setattr("embark_jax.export.scorer.SEARCHED_AT_ONCE", 16)
    counts = []
    in_parts = scorer.recommend(trained.new, 3, "past", counts.append)
    assert in_parts[0] == found
    np.testing.assert_array_equal(in_parts[1], scores)
    assert sum(counts) == len(found)
    assert max(counts) == 16
    counts.clear()
    scorer.evaluate(trained.new, counts.append)
    assert sum(counts) == len(found)


def test_seen_items_of_a_file_are_left_out(trained, tmp_path):
    views = [{"user": " u1", "film": f"f{i:03}"} for i in range(55)]
    seen = write_table(tmp_path / "seen.csv", views)
    arguments = "--in", trained.new, "--out", tmp_path / "top.jsonl", "--k", 60
    done("recommend", trained.run, *arguments, "--seen", seen, "--user", "user")
    for line in (tmp_path / "top.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert (
            len(row["item"]) == len(row["score"]) == (5 if row["user"] == "u1" else 60)
        )
        assert row["user"] != "u1" or min(row["item"]) == "f055"


def test_rows_of_values_are_found_without_their_numbers(trained):
    scorer = ej.load_scorer(trained.run)
    _, trainer = ej.load_run(trained.run)
    rows, known = scorer.vectors("user", ["u7", "nobody", "u39"])
    assert known.tolist() == [True, False, True]
    encoded = pyarrow.ipc.open_file(
        trained.run / "encoding" / "vocabulary" / "user.arrow"
    )
    names = encoded.read_all()["key"].to_pylist()
    expected = trainer.table("user").rows[
        [2 + names.index("u7"), 1, 2 + names.index("u39")]
    ]
    np.testing.assert_array_equal(rows, expected)
    with pytest.raises(DataError, match="usr: is no feature of categories"):
        scorer.vectors("usr", ["u7"])


def test_what_may_tell_the_item_is_known(tmp_path):
    rows = [
        {"user": i % 3, "film": f"f{i % 7}", "kind": f"k{i % 7 % 2}", "when": i}
        for i in range(40)
    ]
    raw = write_table(tmp_path / "log.csv", rows)
    words = "label=null user=user time=when 'history={columns: [film, kind]}'"
    done(f"data prepare csv --raw {raw} --out {tmp_path / 'data'} {words}")
    text = CONFIG.replace("DATA", str(tmp_path / "data")).replace("EXCLUDE", "null")
    text = text.replace(", retrieval: {at: [10], exclude: null}", "")
    for model, told in (
        ("{kind: next_item, history: {past_film: film}}", ["kind"]),
        ("{kind: two_tower, items: [film], tower: [8]}", ["kind"]),
        ("{kind: two_tower, items: [film, kind], tower: [8]}", []),
    ):
        config = runs.write_config(tmp_path, text.replace("MODEL", model))
        pooled = [f"embedding.features.past_{n}.pooling=mean" for n in ("kind", "film")]
        pooled = pooled[: 1 + ("tower" in model)]
        setup = build(reading.load(config, ["train.batch_size=8", *pooled]))
        assert of_the_event(setup.trainer().model, setup.description) == told


def test_other_models_are_told(trained, tmp_path):
    config = runs.write_config(
        tmp_path, CONFIG.replace(", retrieval: {at: [10], exclude: EXCLUDE}", "")
    )
    data = trained.run.parent / "data"
    model = (
        "model={kind: dcn}"
        if "two" in str(trained.run)
        else "model={kind: din, history: {past: film}}"
    )
    done("train", config, f"data.path={data}", model, "--workdir", tmp_path / "run")
    outcome = embark(
        "recommend", tmp_path / "run", "--in", trained.new, "--out", tmp_path / "a.csv"
    )
    assert_refused(outcome, "the model makes no vector of an item's id alone")
    outcome = embark(
        "recommend",
        trained.run,
        "--in",
        trained.new,
        "--out",
        tmp_path / "a.csv",
        "--exclude",
        "usr",
    )
    assert_refused(outcome, "usr: is no feature of items; known: film, past")
