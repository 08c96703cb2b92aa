"""New data keep the rows of earlier ones; an oracle of dictionaries says which."""

import hashlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from embark_jax._base.files import read_arrow
from embark_jax.data import DataError, PreparedData
from embark_jax.data.table_values import TableValues
from tests.prepare.raw_files import everything, prepared, write_table


def rows_of_day(day: int, count: int = 120) -> list[dict]:
    """Rows of which users and items drift: some go, some come."""
    rng = np.random.default_rng(day)
    return [
        {
            "label": int(rng.integers(2)),
            "user": f"u{rng.zipf(1.5) % 40 + 7 * day}",
            "item": int(rng.zipf(1.5) % 30 - 5 * day),
            "price": float(rng.normal(10 * day, 3)),
            "age": float(rng.integers(10 + day, 90)),
            "liked": int(rng.integers(2)),
        }
        for _ in range(count)
    ]


NUMBERS = {"dense": {"price": "standardize", "age": "none"}}


def prepare_day(
    folder: Path, day: int, extend: PreparedData | None = None, rows=None, **options
) -> PreparedData:
    raw = write_table(folder / f"{day}.parquet", rows or rows_of_day(day))
    earlier = extend and extend.folder
    options = {"columns": NUMBERS} | options
    return prepared(raw, folder / f"day {day}", extend=earlier, **options)


def vocabulary(data: PreparedData, table: str, column: str = "key") -> list:
    path = data.folder / "vocabulary" / f"{table}.arrow"
    return read_arrow(path)[column].to_pylist()


@pytest.mark.parametrize("min_count", [1, 3])
def test_values_keep_their_rows_and_new_ones_come_after_them(tmp_path, min_count):
    hashes = (hashlib.md5(str(i).encode()).digest()[8:] for i in range(120))
    is_training = [int.from_bytes(h, "little") % 10 < 8 for h in hashes]
    data, oracle = None, {"user": {}, "item": {}}
    for day in range(4):
        data = prepare_day(tmp_path, day, data, min_count=min_count)
        rows = rows_of_day(day)
        for column, values in oracle.items():
            counts = Counter(
                row[column]
                for row, is_in in zip(rows, is_training, strict=True)
                if is_in
            )
            new = [v for v, n in counts.items() if n >= min_count and v not in values]
            for value in values:  # however rare it is today
                values[value] += counts[value]
            for value in sorted(new, key=lambda value: (-counts[value], value)):
                values[value] = counts[value]
            assert vocabulary(data, column) == list(values)
            assert vocabulary(data, column, "count") == list(values.values())
            assert data.table_rows[column] == 2 + len(values)
            seen = Counter(sample[column] for sample in everything(data))
            assert seen == Counter(
                row[column] if row[column] in values else "rare" for row in rows
            )


def test_numbers_keep_their_transforms(tmp_path):
    first = prepare_day(tmp_path, 0)
    second = prepare_day(tmp_path, 1, first)
    assert second.manifest.numbers == first.manifest.numbers
    fitted = first.manifest.numbers["price"]
    found = [sample["dense price"] for sample in everything(second)]
    expected = [
        (row["price"] - fitted.mean) / fitted.deviation for row in rows_of_day(1)
    ]
    np.testing.assert_allclose(sorted(found), sorted(expected), rtol=1e-5, atol=1e-6)


def test_a_bag_does_not_become_shorter(tmp_path):
    columns = {"features": {"words": {}}, "others": False}
    first, second = (
        [{"label": i % 2, "words": words} for i in range(20)]
        for words in (["a", "b", "c"], ["a", "d"])
    )
    data = prepare_day(tmp_path, 0, rows=first, columns=columns)
    data = prepare_day(tmp_path, 1, data, rows=second, columns=columns)
    assert [f.hotness for f in data.features] == [3]
    assert vocabulary(data, "words") == ["a", "b", "c", "d"]


def test_a_table_that_was_hashed_stays_so(tmp_path):
    """Also where few values come later."""
    first = prepare_day(tmp_path, 0, max_rows=10)
    few = rows_of_day(1)[:8]
    second = prepare_day(tmp_path, 1, first, few, max_rows=10)
    for data in (first, second):
        assert data.manifest.tables["user"].kind == "hashes"
        assert data.table_rows["user"] == 10


OF_TWO_LABELS = NUMBERS | {"labels": ["label", "liked"]}
OTHER_ORDER = {"dense": {"age": "none", "price": "standardize"}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_count": 2}, "min_count is 1 there, 2 here.*must agree in dataset, col"),
        ({"hashed": True, "max_rows": 10}, "hashed is False there, True here"),
        ({"hash_columns": {"user": 10}}, "hash_columns.user is nothing there, 10 here"),
        (
            {"columns": OF_TWO_LABELS | {"dense": {"price": "log"}}},
            "columns.dense.age is",
        ),
        (
            {"columns": OF_TWO_LABELS | OTHER_ORDER},
            r"dense.* is \['price', 'age'\] there",
        ),
        (
            {"columns": NUMBERS | {"labels": ["liked", "label"]}},
            r"labels is \['label', 'liked'\] there",
        ),
        ({"max_rows": 30}, "table 'user': has more values than max_rows 30.*raise"),
        (
            {"rows": [row | {"user": 7} for row in rows_of_day(1)]},
            "table 'user': values are whole numbers, but string in the earlier",
        ),
    ],
)
def test_what_was_prepared_otherwise_is_refused(tmp_path, options, message):
    first = prepare_day(tmp_path, 0, columns=OF_TWO_LABELS)
    with pytest.raises(DataError, match=message):
        prepare_day(tmp_path, 1, first, **{"columns": OF_TWO_LABELS} | options)


def test_the_order_of_dense_columns_tells_days_apart(tmp_path):
    days = prepare_day(tmp_path, 0), prepare_day(tmp_path, 1, columns=OTHER_ORDER)
    yesterday, today = (TableValues(day.folder, day.manifest) for day in days)
    assert "['price', 'age'] there" in " ".join(yesterday.changes(today, "there"))
