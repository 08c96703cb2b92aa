"""Odd values become what Python says they are, or are refused with file and value."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embark_jax.data import DataError, PreparedData
from embark_jax.data import encoding as encoding_files
from embark_jax.data.vocabulary import FIRST_ID
from embark_jax.prepare import raw_rows
from tests.prepare.raw_files import prepared, samples

ROWS = 60
LABELS = [i % 2 for i in range(ROWS)]


def parquet(folder: Path, values: dict, columns=None, split="none") -> PreparedData:
    path = folder / "rows.parquet"
    pq.write_table(pa.table({"label": LABELS, **values}), path)
    return prepared(path, folder / "out", columns, split=split)


def ids_of(data: PreparedData, feature: str) -> list[int]:
    (batch,) = data.in_file_order("train", ROWS)
    return batch.ids[feature][:, 0].tolist()


@pytest.mark.parametrize("in_lists", [False, True])
def test_ids_of_64_bits_without_a_sign(tmp_path, in_lists):
    """Hashes from 2^63 on are ids like others: equal ones get one row, no others do."""
    numbers = [2**64 - 1 - i % 7 * 2**61 for i in range(ROWS)]
    values = [[number] for number in numbers] if in_lists else numbers
    users = pa.array(values, pa.list_(pa.uint64()) if in_lists else pa.uint64())
    data = parquet(tmp_path, {"user": users})
    ids = ids_of(data, "user")
    assert len(set(zip(numbers, ids, strict=True))) == len(set(ids)) == 7
    assert min(ids) == FIRST_ID
    encoding_files.save_encoding(data.folder, data.manifest, tmp_path / "encoding")
    ((batch, _),) = raw_rows.RowEncoder(tmp_path).batches({"user": users})
    assert batch.ids["user"][:, 0].tolist() == ids


def test_columns_without_any_value(tmp_path):
    """They may also share the table of a column of any kind."""
    nothing = {"a": pa.nulls(ROWS), "b": pa.array([[]] * ROWS), "d": pa.nulls(ROWS)}
    data = parquet(
        tmp_path, nothing | {"c": LABELS}, {"features": {"d": {"table": "c"}}}
    )
    assert [set(ids_of(data, name)) for name in "abd"] == [{0}, {-1}, {0}]
    assert data.table_rows == {"a": FIRST_ID, "b": FIRST_ID, "c": FIRST_ID + 2}


def test_values_that_are_missing_in_training_alone(tmp_path):
    column = [None] * 55 + ["x"] * 5
    data = parquet(tmp_path, {"a": column, "b": LABELS}, split="time")
    found = [s["a"] for split in ("train", "validation") for s in samples(data, split)]
    assert found == [None] * 54 + [None] + ["rare"] * 2


@pytest.mark.parametrize(
    "times",
    [
        pa.array([10**18 + 7 * i for i in range(ROWS)], pa.timestamp("ns")),
        pa.array([2**60 + i for i in range(ROWS)]),
        pa.array([str(2**60 + i) for i in range(ROWS)]),
        pa.array([i / 2 for i in range(ROWS)]),
    ],
    ids=["nanoseconds", "large", "text", "float"],
)
def test_times_lose_no_digit(tmp_path, times):
    """The last six of the times are held out, whatever the order of the rows."""
    order = [(i * 37) % ROWS for i in range(ROWS)]
    columns = {"time": "t", "dense": {"place": "none"}}
    values = {"t": times.take(pa.array(order)), "place": order, "a": LABELS}
    data = parquet(tmp_path, values, columns, split="time")
    for split, first, end in (
        ("train", 0, 54),
        ("validation", 54, 57),
        ("test", 57, 60),
    ):
        found = [sample["dense place"] for sample in samples(data, split)]
        assert found == [place for place in order if first <= place < end]


SURROGATES = pa.array([b"u", b"\xed\xa0\x80"] * (ROWS // 2)).view(pa.string())


@pytest.mark.parametrize(
    ("values", "columns", "message"),
    [
        (
            {"a": LABELS, "b": ["x"] * ROWS},
            {"features": {"b": {"table": "a"}}},
            "'a' of .*whole numbers, .*'b' .* has text",
        ),
        (
            {"t": [float("nan")] * ROWS, "a": LABELS},
            {"time": "t"},
            "row 0: column t: value is 'nan', must be a time",
        ),
        (
            {"t": pa.array([2**63] * ROWS, pa.uint64()), "a": LABELS},
            {"time": "t"},
            "value is '9223372036854775808', must be a time",
        ),
        (
            {"a": LABELS, "fold": ["test"] * ROWS},
            {"split": "column=fold"},
            "no sample is in the training split",
        ),
        (
            {"a": [1.5] * ROWS},
            {},
            r"rows\.parquet, row 0: column a: value is '1.5', must be integers or text",
        ),
        ({"a": SURROGATES}, {}, "is not valid UTF8"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, values, columns, message):
    with pytest.raises(DataError, match=message):
        parquet(tmp_path, values, columns, split="time")
    assert not (tmp_path / "out").exists()
