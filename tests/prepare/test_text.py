"""Text stays text where it is asked for, and what is merged otherwise is told."""

import csv

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embark_jax.data.encoding import save_encoding
from embark_jax.prepare.raw_rows import RowEncoder
from tests.prepare.raw_files import everything, prepared, samples, write_table
from tests.runs import done

TEXTS = ["007", "7", "1.10", "1.1", "NA", "", " a", "a", "True", "true", "-", "1e-05"]


def rows_of(seed: int) -> list[dict[str, str]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "label": str(rng.integers(2)),
            "code": str(rng.choice(TEXTS)),
            "tags": "|".join(rng.choice(TEXTS, rng.integers(4))),
            "price": str(rng.choice(["1", "-", ""])),
        }
        for _ in range(60)
    ]


@pytest.mark.parametrize("seed", range(10))
def test_each_text_is_a_value(tmp_path, seed):
    rows = rows_of(seed)
    columns = {
        "missing": ["", "-"],
        "dense": {"price": "none"},
        "features": {
            "code": {"text": True},
            "tags": {"separator": "|", "text": True, "missing": [""]},
        },
    }
    path = write_table(tmp_path / "rows.csv", rows)
    data = prepared(path, tmp_path / "out", columns, split="none")
    for sample, row in zip(samples(data, "train"), rows, strict=True):
        assert sample["code"] == (None if row["code"] in ("", "-") else row["code"])
        tags = [tag for tag in row["tags"].split("|") if tag]
        bag = sample["tags"] if isinstance(sample["tags"], list) else [sample["tags"]]
        assert bag == tags
        assert sample["dense price"] == (1 if row["price"] == "1" else 0)

    # The same in Parquet, and in rows that are scored.
    lists = {n: [row[n] for row in rows] for n in ("code", "price")}
    lists["tags"] = [[t for t in row["tags"].split("|") if t] for row in rows]
    pq.write_table(
        pa.table(lists | {"label": [int(row["label"]) for row in rows]}),
        tmp_path / "rows.parquet",
    )
    other = prepared(tmp_path / "rows.parquet", tmp_path / "o", columns, split="none")
    assert everything(other) == everything(data)
    save_encoding(data.folder, data.manifest, tmp_path / "run/encoding")
    (batch,) = data.in_file_order("train", 99)
    ((scored, _),) = RowEncoder(tmp_path / "run").batches(lists)
    for name in ("code", "tags"):
        np.testing.assert_array_equal(scored.ids[name], batch.ids[name])


def test_merged_texts_are_told(tmp_path):
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "zip", "name", "n"])
        for i, text in enumerate(["007", "7", "7.0", "1.10", "NA", "08"] * 3):
            writer.writerow([i % 2, text, f"x{i}", i])
    call = ("data", "prepare", "csv", "--raw", tmp_path / "rows.csv", "split=none")
    told = done(*call, "--out", tmp_path / "a").out
    # 007 and 7.0 become 7, NA is missing; 1.10 and 08 are no other's value.
    assert "column 'zip': 3 texts such as '007' are the same value as others" in told
    assert "column 'name'" not in told
    assert "column 'n'" not in told
    kept = done(*call, "--out", tmp_path / "b", "features.zip.text=true").out
    assert "texts such as" not in kept


def test_columns_of_text_in_parquet_are_text(tmp_path):
    texts, lists = [*TEXTS, None], [[text] for text in TEXTS] + [[]]
    columns = {"label": [1] * len(texts), "code": texts, "tags": lists}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    data = prepared(tmp_path / "rows.parquet", tmp_path / "out", split="none")
    found = samples(data, "train")
    assert [sample["code"] for sample in found] == [text or None for text in texts]
    assert [sample["tags"] for sample in found] == [t or [] for t in texts]
    merged = prepared(
        tmp_path / "rows.parquet",
        tmp_path / "merged",
        {"features": {"code": {"text": False}}},
        split="none",
    )
    assert merged.table_rows["code"] < data.table_rows["code"]
    save_encoding(data.folder, data.manifest, tmp_path / "run/encoding")
    ((batch, _),) = RowEncoder(tmp_path / "run").batches({"code": texts, "tags": lists})
    (known,) = data.in_file_order("train", 99)
    np.testing.assert_array_equal(batch.ids["code"], known.ids["code"])
