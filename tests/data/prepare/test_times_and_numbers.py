"""Splits by few times, times with a zone, and numbers of more digits than float32."""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embark_jax.data.prepare.raw_rows import RowEncoder, save_encoding
from tests.data.prepare.raw_files import prepared, sizes, write_table

TIMED = {"time": "when"}


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
    days = np.repeat(np.arange(len(counts)), counts)
    rows = [
        {"label": i % 2, "user": f"u{i % 7}", "when": np.datetime64("2024-01-01") + day}
        for i, day in enumerate(days)
    ]
    path = write_table(tmp_path / "rows.csv", rows)
    assert sizes(prepared(path, tmp_path / "out", TIMED, split="time")) == expected


@pytest.mark.parametrize("zone", ["Z", "+02:00", "+0530"])
def test_times_with_a_zone_are_instants(tmp_path, zone):
    rows = [
        {"label": int(not i), "user": "u", "when": f"2024-05-31T{i:02}:30:00{zone}"}
        for i in range(20)
    ]
    rows[0]["when"] = "2024-05-31T10:00:00-12:00"  # 22:00 in UTC, after all others
    path = write_table(tmp_path / "rows.csv", rows)
    data = prepared(path, tmp_path / "out", TIMED, split="time")
    assert sizes(data) == [18, 1, 1]
    assert [batch.labels.tolist() for batch in data.test_batches(9)] == [[1]]


def test_times_of_several_zones_in_parquet(tmp_path):
    times = [datetime.datetime(2024, 5, 1, h, tzinfo=datetime.UTC) for h in range(20)]
    for name, zone in (("a", "Europe/Berlin"), ("b", "UTC")):
        table = {"label": [0, 1] * 10, "user": list("uv") * 10}
        when = pa.array(times, pa.timestamp("ms", zone))
        pq.write_table(pa.table(table | {"when": when}), tmp_path / f"{name}.parquet")
    data = prepared(tmp_path, tmp_path / "out", TIMED, split="time")
    assert sizes(data) == [36, 2, 2]


@pytest.mark.parametrize(
    ("name", "unit"), [("rows.csv", 10**9), ("rows.parquet", 10**9), ("rows.csv", 1)]
)
def test_a_column_of_unix_times_keeps_its_digits(tmp_path, name, unit):
    """In float32 neighbours of 1.7e9 are 128 apart: all of a minute were one value."""
    seconds = [(1_700_000_000 + i % 60) * unit for i in range(600)]
    rows = [{"label": i % 2, "user": i % 5, "t": s} for i, s in enumerate(seconds)]
    path = write_table(tmp_path / name, rows)
    data, ranges = (
        prepared(path, tmp_path / kind, {"dense": {"t": kind}}, split="none")
        for kind in ("standardize", "quantiles")
    )
    (batch,) = data.in_file_order("train", 600)
    of_minute = np.array(seconds, np.float64) / unit - 1_700_000_000
    expected = (of_minute - of_minute.mean()) / of_minute.std()
    np.testing.assert_allclose(batch.dense[:, 0], expected, atol=1e-6)
    save_encoding(data.folder, data.manifest, tmp_path / "run" / "encoding")
    for given in (path, {name: [row[name] for row in rows] for name in rows[0]}):
        ((scored, _),) = RowEncoder(tmp_path / "run").batches(given)
        np.testing.assert_array_equal(scored.dense, batch.dense)
    (batch,) = ranges.in_file_order("train", 600)
    assert len(np.unique(batch.ids["t"])) == 32


def test_a_rating_just_below_the_threshold_is_not_positive(tmp_path):
    rows = [{"label": [3.99999999, 4.0][i % 2], "user": i % 3} for i in range(20)]
    path = write_table(tmp_path / "rows.parquet", rows)
    data = prepared(path, tmp_path / "out", {"positive_from": 4}, split="none")
    (batch,) = data.in_file_order("train", 20)
    assert batch.labels.tolist() == [0, 1] * 10
