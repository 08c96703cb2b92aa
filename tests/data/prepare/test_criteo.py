"""Criteo's files to samples, against the same written line by line."""

import gzip
import math
from collections import Counter

import numpy as np
import pytest

from embark_jax.data import BatchChecker, PreparedData
from embark_jax.data.prepare import criteo, encode
from embark_jax.data.prepare.run import Options, prepare
from tests.data.prepare.raw_files import criteo_lines


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


def stored(data: PreparedData, split: str):
    """Label, dense and ids of a split in the order of the files."""
    batches = data.in_file_order(split, 50)
    parts = [
        (b.labels, b.dense, np.column_stack([b.ids[f.name] for f in data.features]))
        for b in batches
    ]
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def assert_holds(data: PreparedData, split: str, expected, lines) -> None:
    labels, dense, ids = stored(data, split)
    np.testing.assert_array_equal(labels, expected[0][lines])
    np.testing.assert_allclose(dense, expected[1][lines], rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(ids, expected[2][lines])


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("min_count", [1, 3])
def test_kaggle_by_days(tmp_path, monkeypatch, compressed, min_count):
    monkeypatch.setattr(encode, "CHUNK_ROWS", 30)
    lines = criteo_lines(500)
    text = "".join(f"{line}\n" for line in lines).encode()
    if compressed:
        (tmp_path / "train.txt.gz").write_bytes(gzip.compress(text))
    else:
        (tmp_path / "train.txt").write_bytes(text)
    options = Options(split="time", min_count=min_count)
    prepare(criteo.kaggle(tmp_path), tmp_path / "out", options, {})
    data = PreparedData(tmp_path / "out")
    # 500 // 7 = 71 samples are held out: 36 for the test set, 35 for validation.
    expected = oracle(lines, range(429), min_count)
    assert list(data.table_rows.values()) == expected[3]
    assert len(data.manifest.files["train"]) > 3
    assert_holds(data, "train", expected, range(429))
    assert_holds(data, "test", expected, range(429, 465))
    assert_holds(data, "validation", expected, range(465, 500))


def test_a_table_with_too_many_values_is_hashed(tmp_path):
    lines = [line.split("\t") for line in criteo_lines(300)]
    for number, line in enumerate(lines):
        line[14] = f"{number:08x}"
    text = "".join("\t".join(line) + "\n" for line in lines)
    (tmp_path / "train.txt").write_text(text)
    prepare(
        criteo.kaggle(tmp_path), tmp_path / "out", Options("time", max_rows=100), {}
    )
    data = PreparedData(tmp_path / "out")
    assert data.table_rows["C1"] == 100
    assert max(rows for name, rows in data.table_rows.items() if name != "C1") < 50
    assert 80 < len(np.unique(stored(data, "train")[2][:, 0])) < 100


def test_terabyte_by_files_and_its_bags(tmp_path):
    lines = criteo_lines(300)
    for day, (start, stop) in enumerate([(0, 100), (100, 180), (180, 300)]):
        text = "".join(f"{line}\n" for line in lines[start:stop]).encode()
        name = f"day_{day}.gz" if day else "day_0"
        (tmp_path / name).write_bytes(gzip.compress(text) if day else text)
    expected = oracle(lines, range(180), 1)
    for multi_hot in (False, True):
        out = tmp_path / f"out{multi_hot}"
        read = criteo.terabyte_multi_hot if multi_hot else criteo.terabyte
        recipe = read(tmp_path)
        prepare(recipe, out, Options(split="time"), {})
    data = PreparedData(tmp_path / "outFalse")
    assert_holds(data, "train", expected, range(180))
    assert_holds(data, "validation", expected, range(180, 240))
    assert_holds(data, "test", expected, range(240, 300))

    bags = PreparedData(tmp_path / "outTrue")
    assert tuple(f.hotness for f in bags.features) == criteo.MULTI_HOT
    assert sum(criteo.MULTI_HOT) == 214  # of MLPerf's model
    (batch,) = bags.test_batches(100)
    check = BatchChecker(bags.features, bags.table_rows, bags.dense_features)
    check(batch)
    seen = {}
    for column, name in enumerate(criteo.CATEGORIES):
        found = batch.ids[name]
        np.testing.assert_array_equal(found[:, 0], expected[2][240:, column])
        for bag in found.tolist():  # a bag is a function of its first id
            assert seen.setdefault((name, bag[0]), bag) == bag
    # MLPerf's bag of C21 is 100 uniform ids: about all of the table's 30 are seen.
    others = np.unique(batch.ids["C21"][:, 1:])
    assert len(others) > 0.9 * bags.table_rows["C21"]
