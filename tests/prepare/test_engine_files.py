"""Data as an engine writes them: partitioned folders, and ids that it made."""

from collections import Counter

import numpy as np
import polars as pl
import pytest

from embark_jax.data import DataError
from tests.prepare.raw_files import everything, prepared


@pytest.fixture
def clicks() -> pl.DataFrame:
    rng = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "label": rng.integers(0, 2, 300),
            "user": [f"u{user}" for user in rng.zipf(1.4, 300) % 50],
            "item": rng.zipf(1.4, 300) % 30,
            "price": rng.uniform(1, 9, 300).round(3),
            "day": [f"2024-05-0{day}" for day in rng.integers(1, 4, 300)],
            "hour": rng.integers(0, 2, 300),
        }
    )


def test_a_partitioned_folder_is_its_whole_file(clicks, tmp_path):
    whole, parts = tmp_path / "whole.parquet", tmp_path / "parts"
    clicks.write_parquet(whole)
    clicks.write_parquet(parts, partition_by=["day", "hour"])
    (parts / "_SUCCESS").touch()
    (parts / "day=2024-05-01" / ".part.crc").touch()
    paths = sorted(parts.rglob("*.parquet"))
    assert len(paths) == 6
    assert len({path.name for path in paths}) == 1  # as engines name them
    columns = {"dense": {"price": "none"}}
    one, several = (
        prepared(raw, tmp_path / f"of {raw.name}", columns, min_count=2, split="none")
        for raw in (whole, parts)
    )
    assert set(several.table_rows) == {"user", "item", "day", "hour"}
    assert several.table_rows == one.table_rows
    bags = (
        Counter(tuple(sorted(sample.items())) for sample in everything(data))
        for data in (one, several)
    )
    assert next(bags) == next(bags)


def test_ids_as_they_are(clicks, tmp_path):
    raw, items = tmp_path / "clicks.parquet", clicks["item"].to_list()
    items[3] = None
    clicks.with_columns(pl.Series("item", items)).write_parquet(raw)
    columns = {"features": {"item": {"rows": 100}}, "ignore": ["price", "day"]}
    data = prepared(raw, tmp_path / "out", columns, split="none")
    assert data.table_rows["item"] == 100
    (batch,) = data.in_file_order("train", 300)
    assert batch.ids["item"][:, 0].tolist() == [-1 if i is None else i for i in items]
    columns["features"]["item"]["rows"] = 20
    with pytest.raises(DataError, match=r"column item: value is '\d+', must be a row"):
        prepared(raw, tmp_path / "low", columns | {"ignore": ["price"]})
