"""Raw files as users have them, and what is prepared of them."""

import csv
import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embark_jax._base.files import read_arrow
from embark_jax.data import BatchChecker, PreparedData
from embark_jax.data.columns import Columns, Preparation
from embark_jax.prepare import own_files
from embark_jax.prepare.run import prepare


def prepared(
    raw: Path, out: Path, columns=None, extend: Path | None = None, **options
) -> PreparedData:
    """A user's own file or folder; the name of what is not Parquet ends in .csv."""
    columns = Columns.model_validate(columns or {})
    read = own_files.csv if raw.suffix == ".csv" else own_files.parquet
    made_from = {"columns": columns.model_dump(mode="json")}
    prepare(read(raw, columns), out, Preparation(**options), made_from, extend=extend)
    return PreparedData(out)


def prepared_by(recipe, out: Path, **options) -> PreparedData:
    prepare(recipe, out, Preparation(**options), {})
    return PreparedData(out)


def sizes(data: PreparedData) -> list[int]:
    """The numbers of samples for training, validation and test."""
    return [data.manifest.rows(split) for split in ("train", "validation", "test")]


def samples(data: PreparedData, split: str) -> list[dict]:
    """Samples in the order of the files, with values in the place of ids."""
    keys: dict = {name: range(rows) for name, rows in data.table_rows.items()}
    for file in (data.folder / "vocabulary").glob("*.arrow"):
        keys[file.stem] = [None, "rare", *read_arrow(file)["key"].to_pylist()]
    found = []
    check = BatchChecker(data.features, data.table_rows, data.dense_features)
    for batch in map(check, data.in_file_order(split, 7)):
        for i in range(len(batch)):
            sample: dict = {"label": float(batch.labels[i])}
            for name, value in zip(data.manifest.dense, batch.dense[i], strict=True):
                sample[f"dense {name}"] = float(value)
            for f in data.features:
                bag = [keys[f.table][k] for k in batch.ids[f.name][i] if k >= 0]
                sample[f.name] = bag[0] if f.hotness == 1 and bag else bag
            found.append(sample)
    return found


def everything(data: PreparedData) -> list[dict]:
    return [s for split in data.manifest.files for s in samples(data, split)]


def write_rows(path: Path, header, rows, separator=",", encoding="utf-8") -> None:
    lines = [header, *rows] if header else rows
    text = "".join(separator.join(map(str, line)) + "\n" for line in lines)
    path.write_text(text, encoding)


def write_table(path: Path, rows: list[dict]) -> Path:
    """A Parquet file, or a CSV file with a header, by the name; the keys of rows are
    the columns."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


MISSING = {"", "NULL", "null", "NaN", "nan", "None", "\\N", "NA", "N/A", "<NA>"}


def value(text: str) -> str | None:
    """A value as the page on preparation says."""
    text = text.strip(" \t\r\n\v\f\u00a0")
    if text in MISSING:
        return None
    if text in ("True", "TRUE", "False", "FALSE"):
        return text.lower()
    if re.fullmatch(r"-?\d(\.\d+)?e-\d\d\d?", text, re.ASCII):
        text = f"{Decimal(text):f}"
    if not (number := re.fullmatch(r"([+-]?)(\d*)\.?(\d*)", text, re.ASCII)):
        return text
    sign, whole, part = number.groups()
    if not whole and not part:
        return text
    whole, part = whole.lstrip("0") or "0", part.rstrip("0")
    digits = f"{whole}.{part}" if part else whole
    return f"-{digits}" if sign == "-" and digits != "0" else digits


def criteo_lines(count: int, seed: int = 0) -> list[str]:
    """Criteo's lines with missing values, negative counts, rare and hot categories."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        counts = [str(n) if n < 30 else "" for n in rng.integers(-3, 35, 13)]
        keys = (rng.random(26) ** 3 * 40).astype(int) * 107374182
        keys = [f"{k:08x}" if rng.random() < 0.9 else "" for k in keys]
        lines.append("\t".join([str(rng.integers(2)), *counts, *keys]))
    return lines
