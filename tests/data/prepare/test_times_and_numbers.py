"""Splits by few times, times with a zone, and numbers of more digits than float32."""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embark_jax.data import PreparedData
from embark_jax.data.prepare.raw_rows import RowEncoder, save_encoding
from tests.data.prepare.raw_files import write_table
from tests.runs import assert_refused, done, embark


def prepared(folder, rows, *options) -> PreparedData:
    path = write_table(folder / "rows.csv", rows)
    command = "data", "prepare", "csv", "--raw", path, "--out", folder / "out"
    done(*command, *options)
    return PreparedData(folder / "out")


def sizes(data: PreparedData) -> list[int]:
    return [data.manifest.rows(split) for split in ("train", "validation", "test")]


def dated(*counts: int) -> list[dict]:
    """Rows of as many days as there are counts, each with as many rows."""
    return [
        {"label": i % 2, "user": f"u{i % 7}", "when": f"2024-05-{day:02}"}
        for day, count in enumerate(counts, 1)
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([100] * 10, [800, 100, 100]),
        ([10] * 100, [900, 50, 50]),
        ([100, 100, 100, 200], [200, 100, 200]),
        ([60, 40], [60, 0, 40]),
    ],
    ids=["ten dates", "hundred dates", "many at the end", "two dates"],
)
def test_a_split_of_few_times(tmp_path, counts, expected):
    rows = dated(*counts)
    for day, row in zip(np.repeat(np.arange(len(counts)), counts), rows, strict=True):
        row["when"] = str(datetime.date(2024, 1, 1) + datetime.timedelta(int(day)))
    assert sizes(prepared(tmp_path, rows, "time=when")) == expected


@pytest.mark.parametrize("zone", ["Z", "+02:00", "+0530"])
def test_times_with_a_zone_are_instants(tmp_path, zone):
    rows = [
        {"label": int(not i), "user": "u", "when": f"2024-05-31T{i:02}:30:00{zone}"}
        for i in range(20)
    ]
    rows[0]["when"] = "2024-05-31T10:00:00-12:00"  # 22:00 in UTC, after all others
    data = prepared(tmp_path, rows, "time=when")
    assert sizes(data) == [18, 1, 1]
    assert [batch.labels.tolist() for batch in data.test_batches(9)] == [[1]]


def test_times_of_several_zones_in_parquet(tmp_path):
    times = [datetime.datetime(2024, 5, 1, h, tzinfo=datetime.UTC) for h in range(20)]
    for name, zone in (("a", "Europe/Berlin"), ("b", "UTC")):
        table = {"label": [0, 1] * 10, "user": list("uv") * 10}
        when = pa.array(times, pa.timestamp("ms", zone))
        pq.write_table(pa.table(table | {"when": when}), tmp_path / f"{name}.parquet")
    command = "data", "prepare", "parquet", "time=when", "--raw", tmp_path
    done(*command, "--out", tmp_path / "out")
    assert sizes(PreparedData(tmp_path / "out")) == [36, 2, 2]


@pytest.mark.parametrize("unit", [1, 10**9])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_column_of_unix_times_keeps_its_digits(tmp_path, kind, unit):
    """In float32 neighbours of 1.7e9 are 128 apart: all of a minute were one value."""
    seconds = [(1_700_000_000 + i % 60) * unit for i in range(600)]
    rows = [{"label": i % 2, "user": i % 5, "t": s} for i, s in enumerate(seconds)]
    path = write_table(tmp_path / "rows.csv", rows)
    if kind == "parquet":
        path = tmp_path / "rows.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path)
    for transform in ("standardize", "quantiles"):
        out = tmp_path / transform
        options = f"dense.t={transform}", "--split", "none", "--out", out
        done("data", "prepare", kind, *options, "--raw", path)
    data = PreparedData(tmp_path / "standardize", seed=None)
    (batch,) = data.in_file_order("train", 600)
    of_minute = np.array(seconds, np.float64) / unit - 1_700_000_000
    expected = (of_minute - of_minute.mean()) / of_minute.std()
    np.testing.assert_allclose(batch.dense[:, 0], expected, atol=1e-6)
    save_encoding(data.folder, data.manifest, tmp_path / "run" / "encoding")
    for given in (path, {name: [row[name] for row in rows] for name in rows[0]}):
        batches = RowEncoder(tmp_path / "run").batches(given)
        scored = np.concatenate([each.dense for each, _ in batches])
        np.testing.assert_array_equal(scored, batch.dense)
    ranges = PreparedData(tmp_path / "quantiles", seed=None)
    (batch,) = ranges.in_file_order("train", 600)
    assert len(np.unique(batch.ids["t"])) == 32


def test_a_rating_just_below_the_threshold_is_not_positive(tmp_path):
    labels = pa.array([3.99999999, 4.0] * 10)
    table = pa.table({"label": labels, "user": list("uv") * 10})
    pq.write_table(table, tmp_path / "rows.parquet")
    command = "data", "prepare", "parquet", "positive_from=4", "--split", "none"
    done(*command, "--raw", tmp_path / "rows.parquet", "--out", tmp_path / "out")
    (batch,) = PreparedData(tmp_path / "out").in_file_order("train", 20)
    assert batch.labels.tolist() == [0, 1] * 10


def test_half_of_a_surrogate_pair_is_no_text(tmp_path):
    broken = pa.array([b"u", b"\xed\xa0\x80"] * 10).view(pa.string())
    table = pa.table({"label": [0, 1] * 10, "user": broken})
    pq.write_table(table, tmp_path / "a.parquet")
    command = "data", "prepare", "parquet", "--raw", tmp_path, "--out", tmp_path / "out"
    assert_refused(embark(*command), "is not valid UTF8")
