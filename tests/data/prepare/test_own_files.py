"""Files of one's own: lists, sequences, times, splits, numbers, and what is said of
them, against what plain Python makes of the same rows."""

import math
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embark_jax.data import DataError
from embark_jax.data.prepare import count, encode, own_files, raw_rows
from embark_jax.data.prepare.columns import Columns
from tests.data.prepare.raw_files import (
    prepared,
    samples,
    write_rows,
    write_table,
)
from tests.runs import done


def of(path: Path, out: Path, **columns):
    return prepared(own_files.csv(path, Columns.model_validate(columns)), out, "time")


@pytest.fixture
def rows() -> list[dict]:
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


def test_lists_and_sequences_of_one_table(rows, tmp_path, monkeypatch):
    path = write_table(tmp_path / "rows.csv", rows)
    monkeypatch.setattr(encode, "CHUNK_ROWS", 30)
    columns = {
        "label": "stars",
        "positive_from": 4,
        "features": {
            "genres": {"separator": "|"},
            "film": {},
            "seen": {
                **{"separator": ";", "sequence": True},
                **{"longest": 4, "table": "film"},
            },
        },
        "others": False,
        "split": "fold",
    }
    data = of(path, tmp_path / "out", **columns)
    assert [(f.table, f.hotness, f.pooling) for f in data.features] == [
        ("genres", 3, "mean"),
        ("film", 1, "mean"),
        ("film", 4, "none"),
    ]
    for fold, split in (("train", "train"), ("valid", "validation"), ("test", "test")):
        mine = [row for row in rows if row["fold"] == fold]
        found = samples(data, split)
        assert len(found) == len(mine)
        for sample, row in zip(found, mine, strict=True):
            assert sample["label"] == (row["stars"] >= 4)
            assert sample["genres"] == [g for g in row["genres"].split("|") if g]
            assert sample["film"] == row["film"]
            seen = [film.strip() for film in row["seen"].split(";") if film.strip()]
            assert sample["seen"] == seen[-4:]
    # The padding of a sequence is in front.
    (batch,) = data.in_file_order("test", 1000)
    sequence = batch.ids["seen"]
    assert (np.diff((sequence >= 0).astype(int), axis=1) >= 0).all()


def test_several_labels_and_weights(rows, tmp_path, monkeypatch):
    for i, row in enumerate(rows):
        row["like"] = i % 3
        row["stars"] = int(row["stars"] >= 4) * 3
        row["w"] = f"{i / 8}"
    path = write_table(tmp_path / "rows.csv", rows)
    monkeypatch.setattr(encode, "CHUNK_ROWS", 30)
    columns = {"labels": ["stars", "like"], "positive_from": 2, "split": "fold"}
    columns["weight"] = "w"
    data = of(path, tmp_path / "out", features={"film": {}}, others=False, **columns)
    assert data.manifest.labels == ("stars", "like")
    for fold, split in (("train", "train"), ("valid", "validation"), ("test", "test")):
        mine = [row for row in rows if row["fold"] == fold]
        (batch,) = data.in_file_order(split, 1000)
        expected = [[row["stars"] >= 2, row["like"] >= 2] for row in mine]
        np.testing.assert_array_equal(batch.labels, np.float32(expected))
        expected = [float(row["w"]) for row in mine]
        np.testing.assert_array_equal(batch.sample_weights, np.float32(expected))
    (batch,) = (data.train_batch(0, 16),)
    assert batch.labels.shape == (16, 2)
    rows[5] |= {"like": 1, "w": "-2"}
    path = write_table(tmp_path / "bad.csv", rows)
    with pytest.raises(
        DataError, match="line 7: column w: value is '-2', must be 0 or"
    ):
        of(path, tmp_path / "worse", features={"film": {}}, others=False, **columns)


def test_the_latest_are_held_out(rows, tmp_path):
    path = write_table(tmp_path / "rows.csv", rows)
    columns = {"label": "stars", "positive_from": 4, "time": "when", "others": False}
    data = of(path, tmp_path / "out", features={"film": {}}, **columns)
    # Ten samples a day, which are in one split.
    counts = {split: data.manifest.rows(split) for split in data.manifest.files}
    assert sum(counts.values()) == 280
    late = sorted(row["when"] for row in rows)
    cut, later = late[math.ceil(0.9 * 279)], late[math.ceil(0.95 * 279)]
    assert counts == {
        "train": sum(row["when"] < cut for row in rows),
        "validation": sum(cut <= row["when"] < later for row in rows),
        "test": sum(later <= row["when"] for row in rows),
    }


def test_files_say_the_split(tmp_path):
    for name, word in (("train", "a"), ("valid", "b"), ("test", "c")):
        write_rows(tmp_path / f"{name}.csv", ["label", "w"], [(1, word), (0, "a")])
    out = tmp_path / "out"
    outcome = done("data", "prepare", "csv", "--raw", tmp_path, "--out", out)
    assert "2 train, 2 validation, 2 test samples" in outcome.out


@pytest.mark.parametrize("transform", ["none", "log", "standardize", "quantiles"])
@pytest.mark.parametrize("missing", ["zero", "mean"])
def test_numbers(rows, tmp_path, monkeypatch, transform, missing):
    path = write_table(tmp_path / "rows.csv", rows)
    monkeypatch.setattr(encode, "CHUNK_ROWS", 30)
    column = {"transform": transform, "missing": missing, "quantiles": 5}
    data = of(
        path,
        tmp_path / "out",
        label="stars",
        positive_from=4,
        dense={"price": column},
        features={"film": {}},
        others=False,
        split="fold",
    )
    mine = [row for row in rows if row["fold"] == "train"]
    prices = sorted(float(row["price"]) for row in mine if row["price"])
    edges = [prices[math.ceil(k / 5 * (len(prices) - 1))] for k in range(1, 5)]
    log = transform == "log"
    values = [math.log1p(price) for price in prices] if log else prices
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))
    for fold, split in (("train", "train"), ("test", "test")):
        (batch,) = data.in_file_order(split, 1000)
        for place, row in enumerate(r for r in rows if r["fold"] == fold):
            price = float(row["price"]) if row["price"] else None
            if transform == "quantiles":
                # Ranges from id 2 on, that have a fifth of the samples each.
                found = batch.ids["price"][place, 0]
                if price is None:
                    assert found == 0
                    continue
                assert found == 2 + sum(edge <= price for edge in edges)
                continue
            if price is None:
                expected = mean if missing == "mean" else 0.0
                expected = 0.0 if transform == "standardize" else expected
            elif log:
                expected = math.log1p(price)
            else:
                expected = price
                if transform == "standardize":
                    expected = (price - mean) / deviation
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
    columns = Columns(dense={"x": {"transform": "quantiles", "quantiles": 10}})
    recipe = own_files.parquet(tmp_path, columns)
    numbers = prepared(recipe, tmp_path / "out", "none").manifest.numbers
    shares = [(values < edge).mean() for edge in numbers["x"].edges]
    np.testing.assert_allclose(shares, np.arange(1, 10) / 10, atol=0.02)


def test_raw_rows_become_what_they_became_in_training(rows, tmp_path):
    path, out = write_table(tmp_path / "rows.csv", rows), tmp_path / "out"
    data = of(
        path,
        out,
        label="stars",
        positive_from=4,
        time="when",
        ignore=["fold"],
        dense={
            "price": {"transform": "standardize"},
            "age": {"transform": "quantiles"},
        },
        features={
            "genres": {"separator": "|"},
            "seen": {"separator": ";", "sequence": True, "longest": 3},
        },
    )
    raw_rows.save_encoding(out, data.manifest, tmp_path / "run" / raw_rows.FOLDER)
    shutil.rmtree(out / "vocabulary")
    encoder = raw_rows.RowEncoder(tmp_path / "run")
    kept = ("train", "validation", "test")
    whole = [next(iter(data.in_file_order(split, 1000))) for split in kept]
    ((batch, labelled),) = encoder.batches(path)
    assert labelled
    late = np.array([row["when"] for row in rows])
    cuts = [np.sort(late)[math.ceil(share * 279)] for share in (0.9, 0.95)]
    split = (late >= cuts[0]).astype(int) + (late >= cuts[1])
    for number, expected in enumerate(whole):
        np.testing.assert_array_equal(batch.dense[split == number], expected.dense)
        np.testing.assert_array_equal(batch.labels[split == number], expected.labels)
        for name, ids in expected.ids.items():
            np.testing.assert_array_equal(batch.ids[name][split == number], ids)
    lengths = [len(row["seen"].split(";")) for row in rows if row["seen"]]
    assert encoder.cut["seen"] == sum(max(0, length - 3) for length in lengths)
