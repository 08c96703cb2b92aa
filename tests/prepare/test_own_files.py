"""Files of one's own: lists, sequences, times, splits, numbers, and what is said of
them, against what plain Python makes of the same rows."""

import math
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embark_jax.data import DataError
from embark_jax.data import encoding as encoding_files
from embark_jax.prepare import count, encode, raw_rows
from tests.prepare.raw_files import prepared, samples, write_table
from tests.runs import done

FOLDS = (("train", "train"), ("valid", "validation"), ("test", "test"))
ONE_FEATURE = {"features": {"film": {}}, "others": False, "split": "column=fold"}


@pytest.fixture
def rows(monkeypatch) -> list[dict]:
    """Rows of a file that is encoded in ten chunks."""
    monkeypatch.setattr(encode, "CHUNK_ROWS", 30)
    rng = np.random.default_rng(0)
    return [
        {
            "stars": int(rng.integers(1, 6)),
            "genres": "|".join(rng.choice(list("abcdef"), rng.integers(0, 4))),
            "film": f"f{rng.integers(9)}",
            "seen": " ; ".join(f"f{n}" for n in rng.integers(9, size=rng.integers(7))),
            "price": "" if i % 7 == 0 else f"{rng.lognormal(2):.3f}",
            "age": "NULL" if i % 9 == 0 else str(rng.integers(18, 80)),
            "when": f"2024-03-{1 + i % 28:02} 12:00:00",
            "fold": ["train", "train", "train", "valid", "test"][i % 5],
        }
        for i in range(280)
    ]


def test_lists_and_sequences_of_one_table(rows, tmp_path):
    path = write_table(tmp_path / "rows.csv", rows)
    seen = {"separator": ";", "sequence": True, "longest": 4, "table": "film"}
    columns = {
        "label": "stars",
        "positive_from": 4,
        "features": {
            "genres": {"separator": "|"},
            "film": {},
            "seen": seen,
        },
        "others": False,
        "split": "column=fold",
    }
    data = prepared(path, tmp_path / "out", columns, split="time")
    assert [(f.table, f.hotness, f.pooling) for f in data.features] == [
        ("genres", 3, "mean"),
        ("film", 1, "mean"),
        ("film", 4, "none"),
    ]
    for fold, split in FOLDS:
        mine = [row for row in rows if row["fold"] == fold]
        for sample, row in zip(samples(data, split), mine, strict=True):
            assert sample["label"] == (row["stars"] >= 4)
            assert sample["genres"] == [g for g in row["genres"].split("|") if g]
            assert sample["film"] == row["film"]
            seen = [film.strip() for film in row["seen"].split(";") if film.strip()]
            assert sample["seen"] == seen[-4:]
    # The padding of a sequence is in front.
    (batch,) = data.in_file_order("test", 1000)
    sequence = np.asarray(batch.ids["seen"])
    assert (np.diff((sequence >= 0).astype(int), axis=1) >= 0).all()


def test_several_labels_and_weights(rows, tmp_path):
    for i, row in enumerate(rows):
        row |= {"like": i % 3, "w": f"{i / 8}"}
    path = write_table(tmp_path / "rows.csv", rows)
    columns = {"labels": ["stars", "like"], "positive_from": 2, "weight": "w"}
    columns |= ONE_FEATURE
    data = prepared(path, tmp_path / "out", columns, split="time")
    assert data.manifest.labels == ("stars", "like")
    for fold, split in FOLDS:
        mine = [row for row in rows if row["fold"] == fold]
        (batch,) = data.in_file_order(split, 1000)
        expected = [[row["stars"] >= 2, row["like"] >= 2] for row in mine]
        np.testing.assert_array_equal(batch.labels, np.array(expected, np.float32))
        expected = [float(row["w"]) for row in mine]
        np.testing.assert_array_equal(
            batch.sample_weights, np.array(expected, np.float32)
        )
    assert data.train_batch(0, 16).labels.shape == (16, 2)
    rows[5]["w"] = "-2"
    path = write_table(tmp_path / "bad.csv", rows)
    message = "line 7: column w: value is '-2', must be 0 or"
    with pytest.raises(DataError, match=message):
        prepared(path, tmp_path / "worse", columns, split="time")


def test_files_say_the_split(tmp_path):
    for name, word in (("train", "a"), ("valid", "b"), ("test", "c")):
        (tmp_path / f"{name}.csv").write_text(f"label,w\n1,{word}\n0,a\n")
    command = "data", "prepare", "csv", "--raw", tmp_path
    outcome = done(*command, "--out", tmp_path / "out")
    assert "2 train, 2 validation, 2 test samples" in outcome.out
    (tmp_path / "valid.csv").unlink()
    outcome = done(*command, "--out", tmp_path / "of two")
    assert "2 train, 0 validation, 2 test samples" in outcome.out


@pytest.mark.parametrize("transform", ["none", "log", "standardize", "quantiles"])
@pytest.mark.parametrize("missing", ["zero", "mean"])
def test_numbers(rows, tmp_path, transform, missing):
    path = write_table(tmp_path / "rows.csv", rows)
    price = {"transform": transform, "missing": missing, "quantiles": 5}
    columns = {"label": "stars", "positive_from": 4, "dense": {"price": price}}
    data = prepared(path, tmp_path / "out", columns | ONE_FEATURE, split="time")
    in_training = [row["price"] for row in rows if row["fold"] == "train"]
    values = np.sort([float(price) for price in in_training if price])
    edges = [values[math.ceil(k / 5 * (len(values) - 1))] for k in range(1, 5)]
    if transform == "log":
        values = np.log1p(values)
    mean, deviation = values.mean(), values.std()
    for fold, split in FOLDS:
        (batch,) = data.in_file_order(split, 1000)
        for place, row in enumerate(r for r in rows if r["fold"] == fold):
            price = float(row["price"]) if row["price"] else None
            if transform == "quantiles":
                # Ranges from id 2 on, that have a fifth of the samples each.
                expected = 0 if price is None else 2 + sum(e <= price for e in edges)
                assert batch.ids["price"][place, 0] == expected
                continue
            if price is None:
                is_mean = missing == "mean" and transform != "standardize"
                expected = mean if is_mean else 0.0
            elif transform == "log":
                expected = math.log1p(price)
            elif transform == "standardize":
                expected = (price - mean) / deviation
            else:
                expected = price
            assert batch.dense[place, 0] == pytest.approx(expected, rel=1e-5, abs=1e-6)
    if transform == "quantiles":
        (batch,) = data.in_file_order("train", 1000)
        ids, counts = np.unique(batch.ids["price"], return_counts=True)
        assert ids.tolist() == [0, 2, 3, 4, 5, 6]
        assert counts[1:].max() - counts[1:].min() <= 1


def test_quantiles_of_a_sample_are_near_those_of_all(tmp_path, monkeypatch):
    values = np.random.default_rng(0).lognormal(size=40_000)
    monkeypatch.setattr(count, "SAMPLED", 10_000)
    table = pa.table({"label": np.arange(40_000) % 2, "x": values})
    pq.write_table(table, tmp_path / "a.parquet")
    columns = {"dense": {"x": {"transform": "quantiles", "quantiles": 10}}}
    raw = tmp_path / "a.parquet"
    data = prepared(raw, tmp_path / "out", columns, split="none")
    shares = [(values < edge).mean() for edge in data.manifest.numbers["x"].edges]
    np.testing.assert_allclose(shares, np.arange(1, 10) / 10, atol=0.02)


def test_raw_rows_become_what_they_became_in_training(rows, tmp_path):
    path, out = write_table(tmp_path / "rows.csv", rows), tmp_path / "out"
    columns = {
        "label": "stars",
        "positive_from": 4,
        "time": "when",
        "ignore": ["fold"],
        "dense": {"price": "standardize", "age": "quantiles"},
        "features": {
            "genres": {"separator": "|"},
            "seen": {"separator": ";", "sequence": True, "longest": 3},
        },
    }
    data = prepared(path, out, columns, split="time")
    encoding_files.save_encoding(
        out, data.manifest, tmp_path / "run" / encoding_files.FOLDER
    )
    shutil.rmtree(out / "vocabulary")
    encoder = raw_rows.RowEncoder(tmp_path / "run")
    ((batch, labelled),) = encoder.batches(path)
    assert labelled
    # The latest twentieth is the test set; ten samples of one day are in one split.
    days = np.array([row["when"] for row in rows])
    cuts = [np.sort(days)[math.ceil(share * 279)] for share in (0.9, 0.95)]
    split_of_row = np.searchsorted(cuts, days, side="right")
    for number, split in enumerate(("train", "validation", "test")):
        mine = split_of_row == number
        (expected,) = data.in_file_order(split, 1000)
        np.testing.assert_array_equal(batch.dense[mine], expected.dense)
        np.testing.assert_array_equal(batch.labels[mine], expected.labels)
        for name, ids in expected.ids.items():
            np.testing.assert_array_equal(batch.ids[name][mine], ids)
    lengths = [len(row["seen"].split(";")) for row in rows if row["seen"]]
    assert encoder.cut["seen"] == sum(max(0, length - 3) for length in lengths)


def test_a_column_twice_that_is_ignored(tmp_path):
    (tmp_path / "rows.csv").write_text("label,a,b,a\n" + "1,x,y,z\n" * 9)
    with pytest.raises(DataError, match=r"has 2 columns 'a', .* or leave all of them"):
        prepared(tmp_path / "rows.csv", tmp_path / "out")
    data = prepared(tmp_path / "rows.csv", tmp_path / "out", {"ignore": ["a"]})
    assert [feature.name for feature in data.features] == ["b"]
