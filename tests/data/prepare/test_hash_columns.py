"""Columns that are hashed beside columns with a vocabulary."""

import hashlib

import pytest

from embark_jax.config import reading
from embark_jax.data import PreparedData
from tests.data.prepare.raw_files import write_rows
from tests.runs import done, embark, write_config

ROWS = [(i % 2, f"u{i % 23}", f"v{i % 7}", f"c{i % 3}", i % 11) for i in range(60)]
KEYS = 2**63 - 1


@pytest.fixture
def raw(tmp_path):
    write_rows(tmp_path / "rows.csv", ["label", "user", "item", "city", "shop"], ROWS)
    return tmp_path / "rows.csv"


def prepare(raw, out, *options):
    shown = done("data", "prepare", "csv", "--raw", raw, "--out", out, *options)
    return PreparedData(out), shown.out


def hashed(text: str, rows: int) -> int:
    digest = hashlib.md5(text.encode()).digest()[8:]
    return 1 + int.from_bytes(digest, "little") % (rows - 1)


def test_some_columns_are_hashed_and_others_have_a_vocabulary(raw, tmp_path):
    data, out = prepare(
        raw,
        tmp_path / "out",
        "--split",
        "time",
        "--max-rows",
        50,
        "--hash-column",
        "user=keys",
        "--hash-column",
        "item",
        "--hash-column",
        "shop=1000",
    )
    rows = {"user": KEYS, "item": 50, "city": 2 + 3, "shop": 1000}
    assert data.table_rows == rows
    assert "1 tables of keys, which must be dynamic" in out
    batch = data.train_batch(0, data.train_samples)  # in another order
    for name, column, rows in (("user", 1, KEYS), ("item", 2, 50)):
        expected = {hashed(row[column], rows) for row in ROWS}
        assert set(batch.ids[name][:, 0].tolist()) == expected
    assert set(batch.ids["city"][:, 0].tolist()) == {2, 3, 4}


def test_a_table_of_keys_must_be_dynamic(raw, tmp_path):
    prepare(raw, tmp_path / "out", "--hash-column", "user=keys")
    path = write_config(
        tmp_path, f"name: a\ndata: {{kind: prepared, path: {tmp_path / 'out'}}}\n"
    )
    refused = embark("plan", path)
    assert refused.code == 2
    assert "table 'user': its ids are keys of 63 bits, so it must be dynamic" in (
        refused.err
    )
    table = reading.load(path, ["embedding.tables.user.max_slots=500"]).embedding.table(
        "user", KEYS
    )
    assert table.is_dynamic
