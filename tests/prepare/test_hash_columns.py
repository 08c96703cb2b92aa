"""Columns that are hashed beside columns with a vocabulary."""

import hashlib

import pytest

from embark_jax.config import reading
from embark_jax.data import PreparedData
from tests.prepare.raw_files import prepared, write_rows
from tests.runs import assert_refused, done, embark, write_config

ROWS = [(i % 2, f"u{i % 23}", f"v{i % 7}", f"c{i % 3}", i % 11) for i in range(60)]
KEYS = 2**63 - 1


@pytest.fixture
def raw(tmp_path):
    write_rows(tmp_path / "rows.csv", ["label", "user", "item", "city", "shop"], ROWS)
    return tmp_path / "rows.csv"


def hashed(column: int, rows: int) -> set[int]:
    digests = [hashlib.md5(str(row[column]).encode()).digest()[8:] for row in ROWS]
    return {1 + int.from_bytes(digest, "little") % (rows - 1) for digest in digests}


def test_some_columns_are_hashed_and_others_have_a_vocabulary(raw, tmp_path):
    options = "split=time max_rows=50 hash_columns.user=keys hash_columns.item=null"
    command = "data", "prepare", "csv", *options.split(), "hash_columns.shop=1000"
    shown = done(*command, "--raw", raw, "--out", tmp_path / "out")
    assert "1 tables of keys, which must be dynamic" in shown.out
    data = PreparedData(tmp_path / "out")
    assert data.table_rows == {"user": KEYS, "item": 50, "city": 2 + 3, "shop": 1000}
    batch = data.train_batch(0, data.train_samples)  # in another order
    assert {*batch.ids["user"][:, 0].tolist()} == hashed(1, KEYS)
    assert {*batch.ids["item"][:, 0].tolist()} == hashed(2, 50)
    assert set(batch.ids["city"][:, 0].tolist()) == {2, 3, 4}


def test_a_table_of_keys_must_be_dynamic(raw, tmp_path):
    prepared(raw, tmp_path / "out", hash_columns={"user": KEYS})
    path = write_config(
        tmp_path, f"name: a\ndata: {{kind: prepared, path: {tmp_path / 'out'}}}\n"
    )
    message = "table 'user': its ids are keys of 63 bits, so it must be dynamic"
    assert_refused(embark("plan", path), message)
    config = reading.load(path, ["embedding.tables.user.max_slots=500"])
    assert config.embedding.table("user", KEYS).is_dynamic
