"""Raw rows become the samples of training, whatever they are in."""

import hashlib
import json
import math
import shutil
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from embark_jax.data import DataError
from embark_jax.data import encoding as encoding_files
from embark_jax.data import manifest as manifests
from embark_jax.data.hashed_file import HashedFile
from embark_jax.data.vocabulary import FIRST_ID, MISSING_ID, RARE_ID
from embark_jax.prepare.raw_rows import RowEncoder
from tests.prepare.raw_files import prepared

LINES = """\
label,member,zip,size,shop,year,tags,price
1,True,07001,1.50,ann,2001,a|b,1.5
0,False,07002,2,bob,,b,NA
1,True,7001,2.0,,2002,,2
0,,NULL,1.5,ann,2001,7|a,
1,False,07002,,N/A,2003.0,07,3
"""
COLUMNS = {"dense": {"price": {}}, "features": {"tags": {"separator": "|"}}}


def encoding(folder: Path, raw: Path, columns=None, **options) -> Path:
    """Prepares a file, and returns a folder that has its encoding."""
    data = prepared(raw, folder / "prepared", columns, split="none", **options)
    encoding_files.save_encoding(
        data.folder, data.manifest, folder / encoding_files.FOLDER
    )
    return folder


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "raw.csv").write_text(LINES)
    return encoding(tmp_path, tmp_path / "raw.csv", COLUMNS)


def ids(folder: Path, rows) -> dict[str, list]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ((batch, _),) = RowEncoder(folder).batches(rows)
    found = {name: np.asarray(each).tolist() for name, each in batch.ids.items()}
    return found | {"price": batch.dense[:, 0].tolist()}


def test_the_same_rows_in_a_file_and_in_a_table(folder):
    """What other readers make of a file: Booleans, floats, and numbers without zeros
    in front."""
    expected = ids(folder, folder / "raw.csv")
    assert expected["member"][3] == expected["zip"][3] == [MISSING_ID]
    assert expected["shop"][2] == expected["shop"][4] == [MISSING_ID]
    for name, same in (("zip", (0, 2)), ("size", (0, 3)), ("size", (1, 2))):
        one, other = (expected[name][row] for row in same)
        assert one == other >= [FIRST_ID]
    assert expected["price"] == [1.5, 0, 2, 0, 3]
    table = pyarrow.csv.read_csv(folder / "raw.csv")
    kinds = {field.name: str(field.type) for field in table.schema}
    assert (kinds["member"], kinds["zip"], kinds["size"]) == ("bool", "int64", "double")
    assert ids(folder, table) == expected
    rows = table.to_pydict()
    lists = [tag.split("|") for tag in rows["tags"]]
    prices = [math.nan if price is None else price for price in rows["price"]]
    for given in (rows, rows | {"tags": lists}, rows | {"price": prices}):
        assert ids(folder, given) == expected
    for few in (slice(2, 3), slice(0)):  # a row alone, and none
        assert ids(folder, table[few]) == {name: x[few] for name, x in expected.items()}
    pq.write_table(table, folder / "rows.parquet")
    assert ids(folder, folder / "rows.parquet") == expected
    texts = [line.split(",") for line in LINES.splitlines()]
    columns = dict(zip(texts[0], map(list, zip(*texts[1:], strict=True)), strict=True))
    assert ids(folder, columns) == expected
    pq.write_table(pa.table(columns), folder / "rows.parquet")
    assert ids(folder, folder / "rows.parquet") == expected


def test_rows_by_column_and_json_lines(folder):
    """A key that a row lacks, and one that is null, are missing values."""
    expected = ids(folder, folder / "raw.csv")
    rows = pyarrow.csv.read_csv(folder / "raw.csv").to_pylist()
    few = [{k: v for k, v in row.items() if v is not None} for row in rows]
    path = folder / "rows.jsonl"
    for given in (rows, few, tuple(few)):
        assert ids(folder, given) == expected
        lines = [*map(json.dumps, given)]
        path.write_text("\ufeff" + lines[0] + "\r\n\n" + "\n".join(lines[1:]))
        assert ids(folder, path) == expected
    encoder = RowEncoder(folder)
    assert encoder.kept(path, ["zip"]).to_pylist() == [
        {"zip": row["zip"]} for row in rows
    ]
    for text, said in (
        ('{"zip": 1}\n[1]\n', "line 2: must be an object of columns"),
        ('{"zip": 1}\n{"zip": \n', "line 2: Expecting value"),
        ('{"zip": "\\ud800"}', "surrogates not allowed"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=said):
            ids(folder, path)
    path.write_bytes(b'{"zip": 1}\n{"zip": "\xff"}\n')
    with pytest.raises(DataError, match="line 2: 'utf-8' codec can't decode"):
        ids(folder, path)
    for bad in ([1, 2], ["zip"]):
        with pytest.raises(DataError, match="rows: are no table"):
            ids(folder, bad)


def test_frames_with_columns_of_categories(folder):
    expected = ids(folder, folder / "raw.csv")
    frame = pl.from_arrow(pyarrow.csv.read_csv(folder / "raw.csv"))
    for kind in (pl.Categorical, pl.Enum(["ann", "bob", "N/A", ""])):
        assert ids(folder, frame.with_columns(pl.col("shop").cast(kind))) == expected


def test_null_columns_and_columns_of_other_shapes(folder):
    rows = pyarrow.csv.read_csv(folder / "raw.csv").drop_columns(["label"])
    empty = pa.table({name: pa.nulls(3) for name in rows.column_names})
    pq.write_table(empty, folder / "rows.parquet")
    for given in (empty, folder / "rows.parquet"):
        found = ids(folder, given)
        assert found["zip"] == [[MISSING_ID]] * 3
        assert found["tags"] == [[-1, -1]] * 3
        assert found["price"] == [0, 0, 0]
    one_tag = rows.set_column(5, "tags", pa.array(["7", "b", None, "a", "07"]))
    numbers = rows.set_column(5, "tags", pa.array([7, None, None, None, 7]))
    expected = [row[:1] for row in ids(folder, one_tag)["tags"]]
    found = ids(folder, numbers)["tags"]
    assert found[0] == found[4] == [*expected[0], -1]
    with pytest.raises(DataError, match=r"column shop: type is BLOB, must be inte"):
        ids(folder, rows.set_column(3, "shop", pa.array([b"x"] * 5)))


def documented_ids(folder: Path, table: str, values: list) -> list[int]:
    """Ids by the how-to page on exports, in Python's own words."""
    manifest = json.loads((folder / "encoding/data.json").read_text())
    rows, kind = (manifest["tables"][table][key] for key in ("rows", "kind"))
    if kind == "hashes":
        digests = [hashlib.md5(v.encode()).digest()[8:] for v in values]
        return [1 + int.from_bytes(d, "little") % (rows - 1) for d in digests]
    with pa.OSFile(str(folder / "encoding/vocabulary" / f"{table}.arrow")) as file:
        keys = pa.ipc.open_file(file).read_all()["key"].to_pylist()
    return [2 + keys.index(value) if value in keys else 1 for value in values]


@pytest.mark.parametrize("options", [{}, {"hashed": True, "max_rows": 50}])
def test_the_encoding_is_as_its_page_says(tmp_path, options):
    (tmp_path / "raw.csv").write_text(LINES)
    encoding(tmp_path, tmp_path / "raw.csv", COLUMNS, **options)
    found = ids(tmp_path, tmp_path / "raw.csv")
    for name, values in (
        ("zip", ["7001", "7002", "7001", None, "7002"]),
        ("member", ["true", "false", "true", None, "false"]),
        ("size", ["1.5", "2", "2", "1.5", None]),
    ):
        there = [row for row, value in enumerate(values) if value is not None]
        expected = documented_ids(tmp_path, name, [values[row] for row in there])
        assert [found[name][row][0] for row in there] == expected


def test_floats_of_any_form_are_one_value(tmp_path):
    small = [1e-05, -1.5e-07, 0.25, 1e-05]
    lines = ["0.00001", "-0.00000015", "0.250", "1e-05"]
    rows = "".join(f"{i % 2},{line},{i}\n" for i, line in enumerate(lines))
    (tmp_path / "raw.csv").write_text("label,size,n\n" + rows)
    folder = encoding(tmp_path, tmp_path / "raw.csv", {"dense": {"n": "none"}})
    count = np.arange(4, dtype=np.float16)
    for size in (lines, small, np.array(small, np.float32)):
        ((batch, _),) = RowEncoder(folder).batches({"size": size, "n": count})
        assert batch.ids["size"][:, 0].tolist() == [2, 3, 4, 2]
        assert batch.dense[:, 0].tolist() == [0, 1, 2, 3]
    with pytest.raises(DataError, match="column size: type is float16, must be int"):
        list(RowEncoder(folder).batches({"size": count, "n": count}))


BIG = 2**63


def test_ids_of_64_bits(tmp_path):
    """Their texts are known; as int64 they cannot be."""
    known = [BIG, 2**64 - 1, BIG + 1]
    (tmp_path / "raw.csv").write_text(
        "label,user\n" + "".join(f"{i % 2},{known[i % 3]}\n" for i in range(9))
    )
    folder = encoding(tmp_path, tmp_path / "raw.csv")
    vocabulary = {2**64 - 1: FIRST_ID, BIG: FIRST_ID + 1, BIG + 1: FIRST_ID + 2}
    for rows in (known, np.array(known, np.uint64), pa.array(known, pa.uint64())):
        ((batch, _),) = RowEncoder(folder).batches({"user": rows})
        assert batch.ids["user"][:, 0].tolist() == [vocabulary[id] for id in known]
    for rows, message in (
        ([2**64], "rows: column user: has integers of more than 64 bits"),
        ([float(BIG)], r"column user: value is '9\.22.*e\+18', .* no exact"),
        ([1, "a"], "rows: column user: Could not convert 'a'"),
    ):
        with pytest.raises(DataError, match=message):
            list(RowEncoder(folder).batches({"user": rows}))

    whole = pa.table({"label": [0, 1, 1] * 9, "user": [5, 6, 5] * 9})
    pq.write_table(whole, tmp_path / "b.parquet")
    folder = encoding(tmp_path / "whole", tmp_path / "b.parquet")
    ((batch, _),) = RowEncoder(folder).batches({"user": ["6", "5.0", "005", None]})
    assert batch.ids["user"][:, 0].tolist() == [3, 2, 2, MISSING_ID]
    for rows in ([BIG], np.array([BIG], np.uint64), [str(BIG)], ["x"]):
        with pytest.raises(DataError, match=r"column user: value is .*must be"):
            list(RowEncoder(folder).batches({"user": rows}))


def test_many_rows_keep_their_order(folder):
    rows = pyarrow.csv.read_csv(folder / "raw.csv")
    count = 4_000
    many = pa.concat_tables([rows] * (count // len(rows)))
    price = pa.array(np.arange(count, dtype=np.float64))
    many = many.set_column(many.column_names.index("price"), "price", price)
    assert many["zip"].num_chunks == 800  # which threads may read beside each other
    found = ids(folder, many)
    assert found["price"] == price.to_pylist()
    expected = ids(folder, rows)["zip"] * (count // len(rows))
    assert found["zip"] == expected


def test_a_column_that_training_did_not_know(folder):
    rows = pyarrow.csv.read_csv(folder / "raw.csv").to_pydict()
    rows = {name: values * 4 for name, values in rows.items()} | {"zip": ["x"] * 20}
    with pytest.warns(UserWarning, match="column zip: .* not know 20 of 20 values"):
        ((batch, _),) = RowEncoder(folder).batches(rows)
    assert (np.asarray(batch.ids["zip"]) == RARE_ID).all()
    ((batch, _),) = RowEncoder(folder).batches(rows | {"zip": ["7001"] * 20})
    assert (np.asarray(batch.ids["zip"]) >= FIRST_ID).all()


def test_a_damaged_encoding_is_refused(folder, tmp_path):
    files = sorted(path for path in (folder / "encoding").rglob("*") if path.is_file())
    assert {"zip.arrow", "data.json"} <= {path.name for path in files}
    for file in files:
        name, content = file.relative_to(folder), file.read_bytes()
        damaged = [None]
        for place in (9, len(content) - 12):
            flipped = bytes([content[place] ^ 4])
            damaged.append(content[:place] + flipped + content[place + 1 :])
        for content in damaged:
            shutil.copytree(folder / "encoding", tmp_path / "copy/encoding")
            (tmp_path / "copy" / name).unlink()
            if content is not None:
                (tmp_path / "copy" / name).write_bytes(content)
            with pytest.raises(DataError, match="copy"):
                RowEncoder(tmp_path / "copy")
            shutil.rmtree(tmp_path / "copy")


def resign(encoding: Path, change) -> None:
    """What somebody might write who knows the format."""
    manifest = manifests.read(encoding)
    tables = {
        name: table.model_copy(update={"file": change(table.file)})
        for name, table in manifest.tables.items()
    }
    manifest.model_copy(update={"tables": tables}).save(encoding)


def test_an_encoding_names_files_of_its_folder_alone(folder):
    resign(folder / "encoding", lambda file: file.model_copy(update={"file": "../x"}))
    with pytest.raises(DataError, match="which must lie in this folder"):
        RowEncoder(folder)
    resign(folder / "encoding", lambda file: None)
    with pytest.raises(DataError, match=r"tables\.\w+: has no vocabulary"):
        RowEncoder(folder)


def test_arrow_files_are_validated(folder):
    """Offsets of texts that lead out of their buffer are refused, not followed."""
    path = folder / "encoding/vocabulary/member.arrow"
    data, offsets = path.read_bytes(), np.array([0, 5, 9], np.int32).tobytes()
    assert data.count(offsets) == 1  # of "false" and "true"
    path.unlink()  # it may be a hard link
    path.write_bytes(data.replace(offsets, np.array([0, 2**30, 9], np.int32).tobytes()))

    encoding = folder / "encoding"
    resign(encoding, lambda file: HashedFile.of(encoding, file.file))
    with pytest.raises(
        DataError, match=r"member\.arrow: is no Arrow file, or is damaged"
    ):
        RowEncoder(folder)


def test_a_column_twice_is_refused(folder):
    table = pyarrow.csv.read_csv(folder / "raw.csv")
    for name in ("shop", "price", "label"):
        twice = table.append_column(name, table[name])
        pq.write_table(twice, folder / "rows.parquet")
        pyarrow.csv.write_csv(twice, folder / "rows.csv")
        for rows in (twice, folder / "rows.parquet", folder / "rows.csv"):
            with pytest.raises(
                DataError, match=f"has 2 columns '{name}', must have one"
            ):
                ids(folder, rows)
    other = table.append_column("other", table["shop"])
    other = other.append_column("other", table["shop"])
    pq.write_table(other, folder / "rows.parquet")
    expected = ids(folder, table)
    assert ids(folder, other) == ids(folder, folder / "rows.parquet") == expected


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("shop", ["ann", "\ud800"]),
        ("shop", np.array(["NaT", "2020-01-01"], "datetime64[s]")),
        ("shop", np.array(["NaT", "NaT"], "datetime64[s]")),
        ("shop", [np.datetime64("NaT", "s"), "ann"]),
        ("price", np.array(["NaT", "2020-01-01"], "datetime64[s]")),
        ("price", [np.datetime64("NaT", "s"), 1.0]),
        ("price", [1.0, "\ud800"]),
    ],
)
def test_what_is_no_value_of_a_column_is_named(folder, name, values):
    rows = pyarrow.csv.read_csv(folder / "raw.csv")[:2].to_pydict()
    with pytest.raises(DataError, match=f"column {name}: "):
        ids(folder, rows | {name: values})
