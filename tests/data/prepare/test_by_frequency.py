"""Rows by frequency where ids are hashes or row numbers, and for data of one's own."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import embark_jax as ej
from embark_jax._base.files import write_arrow
from embark_jax.data import DataError, PreparedData
from embark_jax.data.hashed_file import HashedFile
from embark_jax.data.manifest import Manifest, Table
from embark_jax.data.prepare.raw_rows import FOLDER, RowEncoder, save_encoding
from embark_jax.data.prepare.vocabulary import vocabulary_file
from embark_jax.data.table_values import TableValues
from embark_jax.statistics.histogram import Histogram
from tests.runs import done

RNG = np.random.default_rng(0)
USERS = RNG.permutation(90)[np.minimum(RNG.zipf(1.5, 800) - 1, 89)]
ITEMS = RNG.permutation(50)[np.minimum(RNG.zipf(1.5, 800) - 1, 49)]
SAMPLES = {
    "label": np.arange(800) % 2,
    "user": [f"u{user}" for user in USERS],
    "item": [None if i % 9 == 0 else item for i, item in enumerate(ITEMS.tolist())],
    "city": ITEMS % 3,
}
COLUMNS = ("label=label", "features.item.rows=60")
HASH = ("--hash-column", "user=200")
BY_FREQUENCY = (*HASH, "--by-frequency", "user", "--by-frequency", "item")


@pytest.fixture
def raw(tmp_path):
    pq.write_table(pa.table(SAMPLES), tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def prepare(raw, out, *options) -> PreparedData:
    done("data", "prepare", "parquet", *COLUMNS, "--raw", raw, "--out", out, *options)
    return PreparedData(out)


def ids_of(data: PreparedData, split: str = "train") -> dict[str, np.ndarray]:
    batches = [*data.in_file_order(split, 50)]
    return {
        name: np.concatenate([batch.ids[name] for batch in batches])
        for name in batches[0].ids
    }


def test_rows_are_those_of_hashes_and_numbers_by_frequency(raw, tmp_path):
    as_they_are = prepare(raw, tmp_path / "as_they_are", *HASH)
    data = prepare(raw, tmp_path / "out", *BY_FREQUENCY)
    assert data.table_rows == as_they_are.table_rows
    before = ids_of(as_they_are)
    # Row 0 of a hashed table stays that of missing values.
    of_user = 1 + ej.by_frequency(before["user"] - 1, 199)
    rows_of = {
        "user": np.append(0, of_user),
        "item": ej.by_frequency(before["item"], 60),
        "city": np.arange(5),
    }
    for split in ("train", "validation", "test"):
        before, after = ids_of(as_they_are, split), ids_of(data, split)
        for name, ids in before.items():
            expected = np.where(ids < 0, -1, rows_of[name][ids])
            np.testing.assert_array_equal(after[name], expected)
    assert (ids_of(data)["item"] == -1).any()
    counts = np.bincount(ids_of(data)["user"].ravel())
    rows = np.flatnonzero(counts)
    assert Histogram.from_counts(rows, counts[rows]).in_order


def test_raw_rows_and_the_next_day_get_the_same_rows(raw, tmp_path):
    data = prepare(raw, tmp_path / "out", *BY_FREQUENCY, "--split", "none")
    save_encoding(data.folder, data.manifest, tmp_path / "run" / FOLDER)
    batches = [batch for batch, _ in RowEncoder(tmp_path / "run").batches(raw)]
    extended = prepare(
        raw,
        tmp_path / "next",
        *BY_FREQUENCY,
        *("--split", "none", "--extend", data.folder),
    )
    for name, expected in ids_of(data).items():
        encoded = np.concatenate([batch.ids[name] for batch in batches])
        np.testing.assert_array_equal(encoded, expected)
        np.testing.assert_array_equal(ids_of(extended)[name], expected)
    other = prepare(raw, tmp_path / "other", *HASH, "--split", "none")
    before, after = (TableValues(each.folder, each.manifest) for each in (data, other))
    assert "have other rows" in " ".join(before.changes(after, "there"))


def test_ids_of_ones_own():
    rows_of = ej.by_frequency([[3, 3, -1], [1, 4, 3], [1, 2, -1]], 6)
    assert rows_of.tolist() == [4, 1, 2, 0, 3, 5]
    assert ej.by_frequency(np.zeros(0, int), 2).tolist() == [0, 1]
    with pytest.raises(ValueError, match="ids are from -2 to 3, must be from 0 to 3"):
        ej.by_frequency([-2, 3], 4)
    with pytest.raises(ValueError, match="ids are a masked array, must be whole"):
        ej.by_frequency(np.ma.array([2, 3], mask=[1, 0]), 4)


def row_numbers(folder, rows) -> list[int]:
    write_arrow(folder / (file := vocabulary_file("a")), pa.table({"row": rows}))
    table = Table(rows=3, kind="numbers", file=HashedFile.of(folder, file))
    manifest = Manifest.of(made_from={}, dense=(), features={}, tables={"a": table})
    return TableValues(folder, manifest).row_numbers("a").tolist()


@pytest.mark.parametrize("rows", [[0.0, 2.0, 1.0], [0, 2, 2], [0, 1], [1, 2, 3]])
def test_row_numbers_that_are_no_permutation_are_refused(tmp_path, rows):
    with pytest.raises(DataError, match="must have a column 'row' with 0 to 2 once"):
        row_numbers(tmp_path, rows)
    assert row_numbers(tmp_path, [2, 0, 1]) == [2, 0, 1]
