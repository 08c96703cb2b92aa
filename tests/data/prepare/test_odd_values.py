"""Odd values become what Python says they are, or are refused with file and value."""

import errno
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embark_jax._base.files import replacing
from embark_jax.data import DataError, PreparedData
from embark_jax.data.prepare import own_files, raw_rows
from embark_jax.data.prepare.columns import Columns
from embark_jax.data.prepare.vocabulary import FIRST_ID
from tests.data.prepare.raw_files import prepared

ROWS = 60
LABELS = [i % 2 for i in range(ROWS)]


def parquet(folder: Path, columns: dict, **described) -> PreparedData:
    path = folder / "rows.parquet"
    pq.write_table(pa.table({"label": LABELS, **columns}), path)
    recipe = own_files.parquet(path, Columns.model_validate(described))
    return prepared(recipe, folder / "out", "time")


def ids_of(data: PreparedData, feature: str) -> list[int]:
    splits = ("train", "test", "validation")  # a split by time has this order
    batches = [b for split in splits for b in data.in_file_order(split, 1000)]
    return [int(each) for batch in batches for each in batch.ids[feature][:, 0]]


@pytest.mark.parametrize("in_lists", [False, True])
def test_ids_of_64_bits_without_a_sign(tmp_path, in_lists):
    """Hashes from 2^63 on are ids like others: equal ones get one row, no others do."""
    numbers = [2**64 - 1 - i % 7 * 2**61 for i in range(ROWS)]
    values = [[number] for number in numbers] if in_lists else numbers
    kind = pa.list_(pa.uint64()) if in_lists else pa.uint64()
    data = parquet(tmp_path, {"user": pa.array(values, kind)})
    ids = ids_of(data, "user")
    assert len(set(zip(numbers, ids, strict=True))) == len(set(ids)) == 7
    assert min(ids) == FIRST_ID
    raw_rows.save_encoding(data.folder, data.manifest, tmp_path / "encoding")
    encoder = raw_rows.RowEncoder(tmp_path)
    ((batch, _),) = encoder.batches({"user": pa.array(values, kind)})
    assert batch.ids["user"][:, 0].tolist() == ids


def test_columns_without_any_value(tmp_path):
    nothing = {"a": pa.nulls(ROWS), "b": pa.array([[]] * ROWS), "c": LABELS}
    data = parquet(tmp_path, nothing)
    assert set(ids_of(data, "a")) == {0}
    assert set(ids_of(data, "b")) == {-1}
    assert data.table_rows == {"a": FIRST_ID, "b": FIRST_ID, "c": FIRST_ID + 2}


def test_values_that_are_missing_in_training_alone(tmp_path):
    column = [None] * 55 + ["x"] * 5
    assert ids_of(parquet(tmp_path, {"a": column, "b": LABELS}), "a") == (
        [0] * 55 + [1] * 5
    )


def test_text_and_numbers_share_no_table(tmp_path):
    columns = {"a": [i % 3 for i in range(ROWS)], "b": ["x"] * ROWS}
    with pytest.raises(DataError, match=r"'a' of .*whole numbers, .*'b' .* has text"):
        parquet(tmp_path, columns, features={"b": {"table": "a"}})
    columns["b"] = pa.nulls(ROWS)  # a column without values is of any kind
    data = parquet(tmp_path / "..", columns, features={"b": {"table": "a"}})
    assert set(ids_of(data, "b")) == {0}


@pytest.mark.parametrize(
    "first",
    [
        pa.array([10**18 + 7 * i for i in range(ROWS)], pa.timestamp("ns")),
        pa.array([2**60 + i for i in range(ROWS)]),
        pa.array([str(2**60 + i) for i in range(ROWS)]),
        pa.array([i / 2 for i in range(ROWS)]),
    ],
    ids=["nanoseconds", "large", "text", "float"],
)
def test_times_lose_no_digit(tmp_path, first):
    """The last six of the times are held out, whatever the order of the rows."""
    order = [(i * 37) % ROWS for i in range(ROWS)]
    columns = {"t": first.take(pa.array(order)), "row": [str(n) for n in order]}
    data = parquet(tmp_path, columns, time="t")
    counts = [data.manifest.rows(s) for s in ("train", "validation", "test")]
    assert counts == [54, 3, 3]
    keys = {
        number
        for number, row in zip(
            ids_of(data, "row")[:54],
            [n for n in order if n < 54],
            strict=True,
        )
        if number < FIRST_ID
    }
    assert not keys  # each training sample has a value of its own


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([float("nan")] * ROWS, "row 0: column t: value is 'nan', must be a time"),
        (
            pa.array([2**63] * ROWS, pa.uint64()),
            "value is '9223372036854775808', must be a time",
        ),
    ],
)
def test_times_that_are_none(tmp_path, times, message):
    with pytest.raises(DataError, match=message):
        parquet(tmp_path, {"t": times, "a": LABELS}, time="t")


def test_no_training_samples(tmp_path):
    columns = {"a": LABELS, "fold": ["test"] * ROWS}
    with pytest.raises(DataError, match="no sample is in the training split"):
        parquet(tmp_path, columns, split="fold")
    assert not (tmp_path / "out" / "data.json").exists()


def test_a_full_disk_is_said_with_the_file(tmp_path):
    path = tmp_path / "part.arrow"
    path.with_name("part.arrow.part").symlink_to("/dev/full")

    def write() -> None:
        with replacing(path) as scratch, scratch.open("wb", buffering=0) as file:
            file.write(bytes(100))

    with pytest.raises(OSError, match=re.escape(str(path))) as found:
        write()
    assert found.value.errno == errno.ENOSPC
    assert not path.exists()
