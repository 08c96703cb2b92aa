"""Files as people have them: columns in any order, folders by day, decimal commas."""

import gzip

import pytest

from embark_jax.data import DataError
from embark_jax.data.encoding import save_encoding
from embark_jax.prepare.raw_rows import RowEncoder
from tests.prepare.raw_files import everything, prepared


def write(path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = text.encode()
    path.write_bytes(gzip.compress(content) if ".gz" in path.name else content)


def test_columns_are_found_by_name_in_every_file(tmp_path):
    """The same rows, whether in one file or in folders with columns in other orders."""
    folder = tmp_path / "log.csv"
    write(folder / "day=1/a.csv", "label,user,item\n1,u1,i1\n0,u2,i2\n")
    write(folder / "day=1/b.csv.gz", "item,label,user\ni1,1,u3\n")
    write(folder / "day=2/a.csv", "user,shop,item,label\nu1,s1,i3,0\n")
    write(folder / "_notes/a.csv", "not,read\n")
    columns = {"optional": ["shop"]}
    data = prepared(folder, tmp_path / "out", columns, split="none")
    rows = [
        {"label": 1, "user": "u1", "item": "i1", "day": "1", "shop": None},
        {"label": 0, "user": "u2", "item": "i2", "day": "1", "shop": None},
        {"label": 1, "user": "u3", "item": "i1", "day": "1", "shop": None},
        {"label": 0, "user": "u1", "item": "i3", "day": "2", "shop": "s1"},
    ]
    assert everything(data) == rows
    save_encoding(data.folder, data.manifest, tmp_path / "run/encoding")
    found = list(RowEncoder(tmp_path / "run").batches(folder))
    assert [len(batch) for batch, _ in found] == [2, 1, 1]


def test_a_file_that_lacks_a_column_is_named(tmp_path):
    folder = tmp_path / "log.csv"
    write(folder / "a.csv", "label,user,shop\n1,u1,s1\n")
    write(folder / "b.csv", "label,user\n1,u1\n")
    with pytest.raises(DataError, match=r"b\.csv: has no column 'shop'"):
        prepared(folder, tmp_path / "out")


@pytest.mark.parametrize("bad", ["1.234,5", "1.5"])
def test_decimal_commas(tmp_path, bad):
    text = "label;price;size\n1;1,5;1,5\n0;-0,25;2\n1;;2\n"
    write(tmp_path / "rows.csv", text)
    columns = {"separator": ";", "decimal": ",", "dense": {"price": "none"}}
    data = prepared(tmp_path / "rows.csv", tmp_path / "out", columns, split="none")
    assert [row["dense price"] for row in everything(data)] == [1.5, -0.25, 0]
    write(tmp_path / "rows.csv", f"{text}1;{bad};2\n")
    with pytest.raises(DataError, match="line 5: column price: value is"):
        prepared(tmp_path / "rows.csv", tmp_path / "new", columns)
