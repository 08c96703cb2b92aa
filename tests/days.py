"""Samples of days, and configs that train on them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embark_jax.config import reading
from embark_jax.data.columns import Columns, Preparation
from embark_jax.prepare import own_files
from embark_jax.prepare.run import prepare
from tests import runs

CONFIG = """\
name: stream
data: {kind: windows, path: PATH}
model: {kind: dlrm, bottom: [8, 4], top: [8, 1]}
embedding:
  dim: 4
  tables:
    user: {rows: 200}
    item: {rows: 200}
train: {batch_size: 32, log_every: 1}
"""
DAYS = 3
TIMED = Columns(time="time")


def table_of(day: int, count: int = 150) -> pa.Table:
    rng = np.random.default_rng(day)
    return pa.table(
        {
            "label": rng.integers(0, 2, count),
            "user": [f"u{user}" for user in rng.zipf(1.3, count) % 40 + 9 * day],
            "item": rng.zipf(1.4, count) % 30 + 5 * day,
            "time": rng.integers(100 * day, 100 * (day + 1), count),
        }
    )


def prepare_table(
    raw: Path,
    table: pa.Table,
    out: Path,
    extend: Path | None = None,
    columns: Columns = TIMED,
    **options,
) -> Path:
    raw.mkdir(exist_ok=True)
    file = raw / f"{out.name}.parquet"
    pq.write_table(table, file)
    made_from = {"dataset": "parquet", "columns": columns.model_dump(mode="json")}
    split = {"split": "none"} if columns.time else {}
    recipe, options = own_files.parquet(file, columns), Preparation(**split, **options)
    prepare(recipe, out, options, made_from, extend=extend)
    return out


def prepare_days(folder: Path) -> Path:
    """Prepared samples of all days, cut into days."""
    days = pa.concat_tables([table_of(day) for day in range(DAYS)])
    return prepare_table(folder / "raw", days, folder / "days", window=100)


def config_of(folder: Path, data: Path, *overrides: str) -> Path:
    path = runs.write_config(folder, CONFIG.replace("PATH", str(data)))
    config = reading.load(path, overrides)
    reading.save(config, path)
    return path
