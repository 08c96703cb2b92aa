"""Criteo's files to samples, against the same written line by line."""

import gzip
import math
from collections import Counter
from pathlib import Path

import numpy as np

from embark_jax.data import BatchChecker, PreparedData
from embark_jax.prepare import criteo, encode
from tests.prepare.raw_files import criteo_lines, prepared_by


def write_lines(path: Path, lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def oracle(lines: list[str], train: range, min_count: int):
    """Label, dense and ids of each line, and the rows of each table."""
    fields = [line.split("\t") for line in lines]
    ids, rows = [], []
    for column in range(14, 40):
        counts = Counter(fields[i][column] for i in train)
        del counts[""]
        kept = [value for value, n in counts.items() if n >= min_count]
        kept.sort(key=lambda value: (-counts[value], int(value, 16)))
        id_of = {value: place + 2 for place, value in enumerate(kept)}
        ids.append([id_of.get(f[column], 1) if f[column] else 0 for f in fields])
        rows.append(len(kept) + 2)
    dense = [[math.log(1 + max(0, int(text or 0))) for text in f[1:14]] for f in fields]
    labels = [int(f[0]) for f in fields]
    return np.array(labels), np.array(dense), np.array(ids).T, rows


def assert_holds(data: PreparedData, split: str, expected, lines) -> None:
    (batch,) = data.in_file_order(split, 1000)
    labels, dense, ids = (part[lines] for part in expected[:3])
    np.testing.assert_array_equal(batch.labels, labels)
    np.testing.assert_allclose(batch.dense, dense, rtol=1e-6, atol=1e-7)
    found = np.column_stack([batch.ids[f.name] for f in data.features])
    np.testing.assert_array_equal(found, ids)


def test_kaggle_by_days(tmp_path, monkeypatch):
    monkeypatch.setattr(encode, "CHUNK_ROWS", 60)
    lines = criteo_lines(250)
    write_lines(tmp_path / "train.txt.gz", lines)
    options = {"split": "time", "min_count": 3}
    data = prepared_by(criteo.kaggle(tmp_path), tmp_path / "out", **options)
    # 250 // 7 = 35 samples are held out: 18 for the test set, 17 for validation.
    expected = oracle(lines, range(215), 3)
    assert list(data.table_rows.values()) == expected[3]
    assert len(data.manifest.files["train"]) > 3
    assert_holds(data, "train", expected, range(215))
    assert_holds(data, "test", expected, range(215, 233))
    assert_holds(data, "validation", expected, range(233, 250))


def test_terabyte_by_files_and_its_bags(tmp_path):
    lines = criteo_lines(300)
    write_lines(tmp_path / "day_0", lines[:100])
    write_lines(tmp_path / "day_1.gz", lines[100:180])
    write_lines(tmp_path / "day_2.gz", lines[180:])
    expected = oracle(lines, range(180), 1)
    data, bags = (
        prepared_by(read(tmp_path), tmp_path / read.__name__, split="time")
        for read in (criteo.terabyte, criteo.terabyte_multi_hot)
    )
    assert_holds(data, "train", expected, range(180))
    assert_holds(data, "validation", expected, range(180, 240))
    assert_holds(data, "test", expected, range(240, 300))

    assert tuple(f.hotness for f in bags.features) == criteo.MULTI_HOT
    assert sum(criteo.MULTI_HOT) == 214  # of MLPerf's model
    (batch,) = bags.test_batches(100)
    check = BatchChecker(bags.features, bags.table_rows, bags.dense_features)
    check(batch)
    seen = {}
    for column, name in enumerate(criteo.CATEGORIES):
        found = np.asarray(batch.ids[name])
        np.testing.assert_array_equal(found[:, 0], expected[2][240:, column])
        for bag in found.tolist():  # a bag is a function of its first id
            assert seen.setdefault((name, bag[0]), bag) == bag
    # MLPerf's bag of C21 is 100 uniform ids: about all of the table's 30 are seen.
    others = np.unique(batch.ids["C21"][:, 1:])
    assert len(others) > 0.9 * bags.table_rows["C21"]
