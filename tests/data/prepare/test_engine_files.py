"""Data as an engine writes them: partitioned folders, and ids that it made."""

from collections import Counter

import numpy as np
import polars as pl
import pytest

from embark_jax.data import DataError, PreparedData
from embark_jax.data.prepare import own_files
from embark_jax.data.prepare.columns import Columns
from embark_jax.data.prepare.run import Options, prepare
from tests.data.prepare.raw_files import everything


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


def prepared(raw, out, columns=None, **options) -> PreparedData:
    columns = columns or Columns(dense={"price": {}})
    recipe = own_files.parquet(raw, columns)
    made_from = {"columns": columns.model_dump(mode="json")}
    prepare(recipe, out, Options(**options), made_from)
    return PreparedData(out)


def bag_of(samples) -> Counter:
    return Counter(tuple(sorted(sample.items())) for sample in samples)


def test_a_partitioned_folder_is_its_whole_file(clicks, tmp_path):
    whole = tmp_path / "whole.parquet"
    clicks.write_parquet(whole)
    clicks.write_parquet(tmp_path / "parts", partition_by=["day", "hour"])
    (tmp_path / "parts" / "_SUCCESS").touch()
    (tmp_path / "parts" / "day=2024-05-01" / ".part.crc").touch()
    paths = sorted((tmp_path / "parts").rglob("*.parquet"))
    assert len(paths) == 6
    assert len({path.name for path in paths}) == 1  # as engines name them
    one, several = (
        prepared(raw, tmp_path / f"prepared {raw.name}", min_count=2, split="none")
        for raw in (whole, tmp_path / "parts")
    )
    assert set(several.table_rows) == {"user", "item", "day", "hour"}
    assert bag_of(everything(several)) == bag_of(everything(one))
    assert several.table_rows == one.table_rows


def test_ids_as_they_are(clicks, tmp_path):
    items = clicks["item"].to_list()
    items[3] = None
    clicks = clicks.with_columns(pl.Series("item", items))
    clicks.write_parquet(tmp_path / "clicks.parquet")
    columns = Columns(features={"item": {"rows": 100}}, ignore=("price", "day"))
    data = prepared(
        tmp_path / "clicks.parquet", tmp_path / "out", columns, split="none"
    )
    assert data.table_rows["item"] == 100
    ids = np.concatenate([b.ids["item"] for b in data.in_file_order("train", 64)])
    assert ids[:, 0].tolist() == [-1 if item is None else item for item in items]
    columns = Columns(features={"item": {"rows": 20}}, ignore=("price",))
    with pytest.raises(DataError, match=r"column item: value is '\d+', must be a row"):
        prepared(tmp_path / "clicks.parquet", tmp_path / "low", columns)
