"""The peer: the same preparation as a plain Polars pipeline, lazy and streaming.

Same ids, dense features and splits, in Arrow files; without line numbers, counted bad
lines, hashes and the ability to go on.
"""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl

COUNTS = [f"I{i}" for i in range(1, 14)]
CATEGORIES = [f"C{i}" for i in range(1, 27)]


def main(raw: Path, out: Path, min_count: int) -> None:
    schema = {"label": pl.Float32}
    schema |= dict.fromkeys(COUNTS, pl.Int64) | dict.fromkeys(CATEGORIES, pl.String)
    lines = pl.scan_csv(
        raw, separator="\t", has_header=False, schema=schema, quote_char=None
    )
    samples = lines.with_columns(
        *(pl.col(n).fill_null(0).clip(0).log1p().cast(pl.Float32) for n in COUNTS),
        *(pl.col(n).str.to_integer(base=16, dtype=pl.UInt32) for n in CATEGORIES),
    ).with_row_index("row")
    total = lines.select(pl.len()).collect(engine="streaming").item()
    held_out = total // 7
    train, middle = total - held_out, total - held_out // 2

    counted = [
        samples.filter(pl.col("row") < train)
        .group_by(name)
        .len()
        .filter(pl.col(name).is_not_null(), pl.col("len") >= min_count)
        .sort(["len", name], descending=[True, False])
        for name in CATEGORIES
    ]
    ids = []
    tables = pl.collect_all(counted, engine="streaming")
    for name, table in zip(CATEGORIES, tables, strict=True):
        places = pl.Series(range(2, 2 + len(table)), dtype=pl.Int32)
        known = pl.col(name).replace_strict(
            table[name], places, default=1, return_dtype=pl.Int32
        )
        ids.append(pl.when(pl.col(name).is_null()).then(0).otherwise(known).alias(name))
    encoded = samples.with_columns(ids)
    row = pl.col("row")
    splits = {
        "train": row < train,
        "test": (row >= train) & (row < middle),
        "validation": row >= middle,
    }
    out.mkdir(parents=True)
    sinks = [
        encoded.filter(rows).drop("row").sink_ipc(out / f"{split}.arrow", lazy=True)
        for split, rows in splits.items()
    ]
    pl.collect_all(sinks, engine="streaming")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
