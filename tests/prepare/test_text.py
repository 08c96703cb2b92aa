"""Text stays text where it is asked for, and what is merged otherwise is told."""

import csv

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embark_jax.data.encoding import save_encoding
from embark_jax.prepare.raw_rows import RowEncoder
from tests.prepare.raw_files import prepared, samples
from tests.runs import done

TEXTS = ["007", "7", "1.10", "1.1", "NA", "", " a", "a", "True", "true", "-", "1e-05"]


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
