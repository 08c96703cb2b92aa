"""Splits by few times, times with a zone, and numbers of more digits than float32."""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embark_jax.data import DataError
from embark_jax.data.encoding import save_encoding
from embark_jax.prepare.raw_rows import RowEncoder
from tests.prepare.raw_files import prepared, sizes, write_table

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


DATES = [f"2024-01-{day:02} 00:00:00" for day in range(1, 21)]
NO_TIMES = {
    "infinity": [*DATES, "-infinity"],
    "an unknown zone": [*DATES, "2024-01-01 00:00:00 Mars/Olympus"],
    "whole numbers of 65 bits": [2**62, 2**63],
    "an infinite number": [0.5, "-inf"],
    "timestamp": pa.array([0, 2**63 - 1], pa.timestamp("us")),
    "date": pa.array([0, 2**31 - 1], pa.date32()),
    "uint64": pa.array([2**62, 2**63], pa.uint64()),
    "float64": pa.array([0.5, np.inf]),
}


@pytest.mark.parametrize("case", NO_TIMES)
def test_what_is_no_time_is_refused_with_its_row(tmp_path, case):
    times = NO_TIMES[case]
    path = tmp_path / ("rows.csv" if isinstance(times, list) else "rows.parquet")
    if isinstance(times, list):
        write_table(path, [{"label": 1, "user": 2, "when": time} for time in times])
    else:
        count = len(times)
        table = {"label": [1] * count, "user": [2] * count, "when": times}
        pq.write_table(pa.table(table), path)
    where = f"row {len(times) - 1}" if path.suffix != ".csv" else len(times) + 1
    with pytest.raises(DataError, match=f"{where}: column when: value is .*a time"):
        prepared(path, tmp_path / "out", TIMED, window=86_400)
    if path.suffix == ".csv":
        data = prepared(path, tmp_path / "out", TIMED, on_bad_line="skip")
        assert data.manifest.raw_rows - data.manifest.skipped_lines == len(times) - 1


def test_named_zones_are_instants(tmp_path):
    zones = ["UTC", "America/New_York", "Asia/Tokyo", "-03:30"]
    times = [f"2024-01-01 {hour}:00:00 {zone}" for zone in zones for hour in (10, 11)]
    rows = [{"label": 1, "user": i, "when": time} for i, time in enumerate(times)]
    path = write_table(tmp_path / "rows.csv", rows)
    data = prepared(path, tmp_path / "out", TIMED, split="none", window=3_600)
    day = int(np.datetime64("2024-01-01", "s").astype(int))
    utc = [1, 2, 10, 11, 13, 14, 15, 16]
    assert data.manifest.windows == [day + 3_600 * hour for hour in utc]


@pytest.mark.parametrize("kind", ["whole", "timestamp", "before 1970"])
def test_windows_of_nanoseconds_begin_where_they_should(tmp_path, kind):
    day, unit = 86_400 * 10**9, 10**9 if kind == "timestamp" else 1
    midnight = (-5 if kind == "before 1970" else 19_700) * day
    times = [midnight - 1, midnight, midnight + day - 1, midnight + day]
    when = pa.array(times, pa.timestamp("ns") if kind == "timestamp" else pa.int64())
    table = {"label": [1, 0, 1, 0], "user": [1, 2, 3, 4], "when": when}
    pq.write_table(pa.table(table), path := tmp_path / "rows.parquet")
    data = prepared(path, tmp_path / "out", TIMED, split="none", window=day // unit)
    begins = [file.window for file in data.manifest.files["train"]]
    assert begins == [(midnight + k * day) // unit for k in (-1, 0, 1)]
    assert [file.rows for file in data.manifest.files["train"]] == [1, 2, 1]


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


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_no_numbers_of_parquet_are_missing(tmp_path, kind):
    """Of these numbers the file says the smallest and the largest, without NaN."""
    numbers = [np.nan, -1, 2, np.nan, 2]
    columns = {"price": pa.array(numbers, kind), "code": pa.array(numbers, kind)}
    table = pa.table({"label": [0, 1, 0, 1, 0], **columns})
    pq.write_table(table, path := tmp_path / "rows.parquet")
    data = prepared(path, tmp_path / "out", {"dense": {"price": {}}}, split="none")
    (batch,) = data.in_file_order("train", 5)
    assert batch.dense[:, 0].tolist() == [0, -1, 2, 0, 2]
    assert batch.ids["code"][:, 0].tolist() == [0, 3, 2, 0, 2]
    assert data.manifest.missing_dense == {"price": 2}


def test_a_rating_just_below_the_threshold_is_not_positive(tmp_path):
    rows = [{"label": [3.99999999, 4.0][i % 2], "user": i % 3} for i in range(20)]
    path = write_table(tmp_path / "rows.parquet", rows)
    data = prepared(path, tmp_path / "out", {"positive_from": 4}, split="none")
    (batch,) = data.in_file_order("train", 20)
    assert batch.labels.tolist() == [0, 1] * 10
