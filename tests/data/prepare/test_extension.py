"""New data keep the rows of earlier ones; an oracle of dictionaries says which."""

import hashlib
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embark_jax._base.files import read_arrow
from embark_jax.data import DataError, PreparedData
from embark_jax.data.prepare import own_files
from embark_jax.data.prepare.columns import Columns
from embark_jax.data.prepare.run import Options, prepare
from embark_jax.data.table_values import TableValues
from tests.data.prepare.raw_files import everything

COLUMNS = Columns(dense={"price": "standardize", "age": {"transform": "quantiles"}})


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
        }
        for _ in range(count)
    ]


def prepare_day(
    folder: Path, day: int, extend: Path | None = None, rows=None, columns=COLUMNS, **kw
) -> PreparedData:
    raw, out = folder / f"{day}.parquet", folder / f"day {day}"
    pq.write_table(pa.Table.from_pylist(rows or rows_of_day(day)), raw)
    recipe = own_files.parquet(raw, columns)
    options = Options(**kw)
    made_from = {"dataset": "parquet", "columns": columns.model_dump(mode="json")}
    prepare(recipe, out, options, made_from, extend=extend)
    return PreparedData(out)


def vocabulary(data: PreparedData, table: str, column: str = "key") -> list:
    path = data.folder / "vocabulary" / f"{table}.arrow"
    return read_arrow(path)[column].to_pylist()


def training_values(day: int, column: str, splits) -> Counter:
    rows = zip(rows_of_day(day), splits, strict=True)
    return Counter(row[column] for row, split in rows if split == 0)


@pytest.mark.parametrize("min_count", [1, 3])
def test_values_keep_their_rows_and_new_ones_come_after_them(tmp_path, min_count):
    hashes = (hashlib.md5(str(i).encode()).digest()[8:] for i in range(120))
    splits = [max(int.from_bytes(h, "little") % 10 - 7, 0) for h in hashes]
    columns = Columns(dense={"price": "log"}, ignore=("age",))
    data, oracle = None, {"user": {}, "item": {}}
    for day in range(4):
        extend = data.folder if data else None
        data = prepare_day(tmp_path, day, extend, columns=columns, min_count=min_count)
        for column, values in oracle.items():
            counts = training_values(day, column, splits)
            new = [v for v, n in counts.items() if n >= min_count and v not in values]
            for value in values:  # however rare it is today
                values[value] += counts[value]
            for value in sorted(new, key=lambda value: (-counts[value], value)):
                values[value] = counts[value]
            assert vocabulary(data, column) == list(values)
            assert vocabulary(data, column, "count") == list(values.values())
            assert data.table_rows[column] == 2 + len(values)
            ids = {value: row for row, value in enumerate(values, 2)}
            seen = Counter(s[column] for s in everything(data))
            wanted = Counter(
                row[column] if row[column] in ids else "rare"
                for row in rows_of_day(day)
            )
            assert seen == wanted


def test_numbers_keep_their_transforms(tmp_path):
    first = prepare_day(tmp_path, 0)
    second = prepare_day(tmp_path, 1, first.folder)
    assert second.manifest.numbers == first.manifest.numbers
    prices = {round(row["price"], 6) for row in rows_of_day(1)}
    fitted = first.manifest.numbers["price"]
    for batch in second.in_file_order("train", 50):
        back = batch.dense[:, 0] * fitted.deviation + fitted.mean
        for price in back:
            assert min(abs(price - other) for other in prices) < 1e-4


def test_a_bag_does_not_become_shorter(tmp_path):
    columns = Columns(features={"words": {}}, others=False)

    def day(number, words, extend=None):
        rows = [{"label": i % 2, "words": words} for i in range(20)]
        return prepare_day(tmp_path, number, extend, rows, columns)

    first = day(0, ["a", "b", "c"])
    second = day(1, ["a", "d"], first.folder)
    assert [f.hotness for f in (*first.features, *second.features)] == [3, 3]
    assert vocabulary(second, "words") == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"min_count": 2},
            r"min_count is 1 there, 2 here.*must agree in dataset, columns",
        ),
        ({"hashed": True, "max_rows": 10}, "hashed is False there, True here"),
        ({"hash_columns": {"user": 10}}, "hash_columns.user is nothing there, 10 here"),
        ({"columns": Columns(dense={"price": "log"})}, "columns.dense.age is"),
        ({"max_rows": 30}, r"table 'user': has more values than --max-rows 30.*raise"),
        (
            {"rows": [row | {"user": 7} for row in rows_of_day(1)]},
            "table 'user': values are whole numbers, but string in the earlier",
        ),
    ],
)
def test_what_was_prepared_otherwise_is_refused(tmp_path, options, message):
    first = prepare_day(tmp_path, 0)
    with pytest.raises(DataError, match=message):
        prepare_day(tmp_path, 1, first.folder, **options)


def of_dense(*names: str) -> dict:
    """A day whose dense columns are named in an order."""
    rows = [
        {"label": i % 2, "user": i % 5, "price": i % 7, "age": i % 3, "weight": 1.0}
        for i in range(40)
    ]
    return {"rows": rows, "columns": Columns(dense=dict.fromkeys(names, "none"))}


@pytest.mark.parametrize("names", [("age", "price"), ("price", "age", "weight")])
def test_days_agree_in_names_and_order_of_dense_columns(tmp_path, names):
    first = prepare_day(tmp_path, 0, **of_dense("price", "age"))
    with pytest.raises(DataError, match=r"dense.* is \['price', 'age'\] there"):
        prepare_day(tmp_path, 1, first.folder, **of_dense(*names))
    other = prepare_day(tmp_path, 2, **of_dense(*names))
    yesterday, today = (TableValues(d.folder, d.manifest) for d in (first, other))
    assert "['price', 'age'] there" in " ".join(yesterday.changes(today, "there"))


def test_days_agree_in_the_order_of_labels(tmp_path):
    rows = [{"bought": i % 2, "liked": i % 3 // 2, "user": i % 5} for i in range(40)]

    def day(number, *labels, extend=None):
        return prepare_day(tmp_path, number, extend, rows, Columns(labels=labels))

    first = day(0, "liked", "bought")
    with pytest.raises(DataError, match=r"labels is \['liked', 'bought'\] there"):
        day(1, "bought", "liked", extend=first.folder)


def test_hashed_tables_keep_their_rows(tmp_path):
    first = prepare_day(tmp_path, 0, hash_columns={"user": 50})
    second = prepare_day(tmp_path, 1, first.folder, hash_columns={"user": 50})
    assert first.table_rows["user"] == second.table_rows["user"] == 50
