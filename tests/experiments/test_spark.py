"""Vocabularies and ids that Spark makes are those of DuckDB."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from embark_jax.data import PreparedData
from embark_jax.data.columns import Columns, Preparation
from embark_jax.prepare import own_files
from embark_jax.prepare.run import prepare

PROGRAM = Path(__file__).parents[2] / "experiments/spark_preparation/prepare.py"
ODD = [
    "7",
    "007",
    "7.0",
    "+7",
    "2.50",
    ".5",
    "-0",
    "NA",
    "",
    " x ",
    "x",
    "True",
    "TRUE",
]
ODD += ["Gödel", "a|b", "\u00a0x", "1e5", "-", None]
FEATURES = {
    "plain": {},
    "lists": {
        "tags": {"separator": "|"},
        "seen": {"sequence": True, "table": "item", "longest": 4},
    },
    "one table": {"odd": {"table": "user"}, "tags": {"separator": "|", "longest": 1}},
}


def table_of(seed: int, count: int = 400) -> pa.Table:
    rng = np.random.default_rng(seed)
    items = rng.zipf(1.4, count) % 30
    tags = [rng.integers(0, 9, rng.integers(0, 4)) for _ in range(count)]
    columns = {
        "label": rng.integers(0, 2, count).astype(float),
        "price": rng.lognormal(size=count),
        "user": [f"u{user}" for user in rng.zipf(1.4, count) % 50],
        "item": [None if i % 11 == 0 else n for i, n in enumerate(items.tolist())],
        "odd": [ODD[i] for i in rng.integers(0, len(ODD), count)],
        "tags": ["|".join(f"{tag:03}" for tag in bag) for bag in tags],
        "seen": [rng.integers(0, 30, rng.integers(0, 6)).tolist() for _ in items],
        "flag": rng.integers(0, 2, count).astype(bool),
        "part": rng.choice(["train", "validation", "test"], count),
    }
    return pa.table(columns)


def samples(raw: Path, columns: dict, out: Path, **options) -> tuple[dict, dict]:
    """Rows of tables, and the samples of each split, in any order."""
    recipe = own_files.parquet(raw, Columns.model_validate(columns))
    prepare(recipe, out, Preparation(split="time", **options), {})
    data, found = PreparedData(out), {}
    for split in data.manifest.files:
        found[split] = sorted(
            (
                float(batch.labels[i]),
                *map(float, batch.dense[i]),
                *((name, *ids[i].tolist()) for name, ids in sorted(batch.ids.items())),
            )
            for batch in data.in_file_order(split, 1000)
            for i in range(len(batch))
        )
    return dict(data.table_rows), found


@pytest.mark.slow
@pytest.mark.parametrize("features", FEATURES)
def test_ids_are_those_of_duckdb(tmp_path, features):
    if importlib.util.find_spec("pyspark") is None or shutil.which("java") is None:
        pytest.skip("pyspark or Java is not here")
    (tmp_path / "raw").mkdir()
    pq.write_table(table_of(len(features)), tmp_path / "raw" / "a.parquet")
    columns = {"dense": {"price": "log"}, "split": "column=part"}
    columns["features"] = FEATURES[features]
    (tmp_path / "columns.yaml").write_text(yaml.safe_dump(columns))
    out = tmp_path / "numbered"
    command = [sys.executable, PROGRAM, "--raw", tmp_path / "raw", "--min-count", "2"]
    command += ["--columns", tmp_path / "columns.yaml", "--out", out]
    env = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    subprocess.run(list(map(str, command)), env=env, check=True)
    made = yaml.safe_load((out / "columns.yaml").read_text())
    ours = samples(tmp_path / "raw", columns, tmp_path / "a", min_count=2)
    assert samples(out / "samples", made, tmp_path / "b") == ours
    for table in ours[0]:
        assert any((out / "values" / table).glob("*.parquet"))
