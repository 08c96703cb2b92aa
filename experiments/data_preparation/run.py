"""Prepares lines of Criteo's layout, reads them in batches, and encodes raw rows;
beside SQL by hand, Polars, and plain memory-mapped matrices, one after the other.

    python experiments/data_preparation/run.py --lines 5000000 --rounds 3

Everything is on the CPU; each step is a process of its own.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).parents[2]
# Numbers of values of C1 to C26 of the Kaggle data.
VALUES = [1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593]
VALUES += [3194, 27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105]
VALUES += [142572]
EMBARK = "from embark_jax.cli import main; main()"

SQL = """
import duckdb, sys
raw, out, memory = sys.argv[1:]
numbers, keys = [f"I{i}" for i in range(1, 14)], [f"C{i}" for i in range(1, 27)]
types = {"label": "TINYINT"} | dict.fromkeys(numbers, "BIGINT")
types |= dict.fromkeys(keys, "VARCHAR")
db = duckdb.connect(config={"memory_limit": memory, "temp_directory": out + "/spill"})
db.execute(f"CREATE TABLE raw AS FROM read_csv('{raw}', delim = '\\t', quote = '', "
           f"header = false, auto_detect = false, columns = {types})")
((total,),) = db.execute("SELECT count(*) FROM raw").fetchall()
first = total - total // 7
for key in keys:
    db.execute(f"CREATE TABLE {key} AS SELECT {key} AS key, 1 + row_number() OVER "
               f"(ORDER BY count(*) DESC, {key}) AS id FROM raw WHERE rowid < {first} "
               f"AND {key} IS NOT NULL GROUP BY {key}")
ids = ", ".join(f"if(raw.{k} IS NULL, 0, coalesce({k}.id, 1)) AS {k}" for k in keys)
logs = ", ".join(f"ln(1 + greatest(coalesce({n}, 0), 0))::FLOAT {n}" for n in numbers)
joins = " ".join(f"LEFT JOIN {k} ON raw.{k} = {k}.key" for k in keys)
for begin in range(0, total, 1_000_000):
    db.execute(f"COPY (SELECT label, {logs}, {ids} FROM raw {joins} WHERE raw.rowid >= "
               f"{begin} AND raw.rowid < {begin + 1_000_000} ORDER BY raw.rowid) TO "
               f"'{out}/{begin:012}.parquet'")
"""

POLARS = """
import polars as pl, sys
raw, out, _ = sys.argv[1:]
numbers, keys = [f"I{i}" for i in range(1, 14)], [f"C{i}" for i in range(1, 27)]
schema = {"label": pl.Int8} | dict.fromkeys(numbers, pl.Int64)
schema |= dict.fromkeys(keys, pl.String)
rows = pl.scan_csv(raw, separator="\\t", has_header=False, schema=schema,
                   quote_char=None).with_row_index("row").collect(engine="streaming")
training = rows.head(len(rows) - len(rows) // 7)
made = rows.lazy().with_columns(
    pl.col(n).fill_null(0).clip(0).log1p().cast(pl.Float32) for n in numbers)
for key in keys:
    known = (training.lazy().drop_nulls(key).group_by(key).len()
             .sort("len", key, descending=[True, False])
             .with_row_index("id", 2).select(key, "id"))
    made = made.join(known, on=key, how="left", maintain_order="left").with_columns(
        pl.when(pl.col(key).is_null()).then(0).otherwise(pl.col("id").fill_null(1))
        .alias(key)).drop("id")
made.sink_parquet(out + "/all.parquet")
"""

READ = """
import json, sys, time
import numpy as np
from pathlib import Path
from embark_jax.data import BatchChecker, PreparedData
folder, plain = map(Path, sys.argv[1:])
data = PreparedData(folder, threads=2)
check = BatchChecker(data.features, data.table_rows, data.dense_features)
steps = data.train_samples // 4096
if not plain.exists():
    plain.mkdir()
    parts = [b.matrices()[1] for b in data.in_file_order("train", 2**16)]
    for name in parts[0]:
        np.save(plain / f"{name}.npy", np.concatenate([part[name] for part in parts]))
    del parts
matrices = [np.load(path, mmap_mode="r") for path in sorted(plain.glob("*.npy"))]
order = np.random.default_rng(0).permutation(data.train_samples)
def ours_shuffled():
    for step in range(steps):
        check(data.train_batch(step, 4096))
def ours_in_order():
    for batch in data.in_file_order("train", 4096):
        check(batch)
def matrices_shuffled():
    for step in range(steps):
        rows = order[step * 4096 : (step + 1) * 4096]
        [matrix[rows] for matrix in matrices]
def matrices_in_order():
    for step in range(steps):
        [matrix[step * 4096 : (step + 1) * 4096] for matrix in matrices]
found = {}
for read in (ours_shuffled, matrices_shuffled, ours_in_order, matrices_in_order):
    read()
    begin = time.perf_counter(), time.process_time()
    read()
    wall, cpu = time.perf_counter() - begin[0], time.process_time() - begin[1]
    found[read.__name__] = [data.train_samples / each / 1e6 for each in (wall, cpu)]
print(json.dumps(found))
"""

ENCODE = """
import json, sys, time, warnings
import pyarrow.csv
from embark_jax.data import PreparedData
from embark_jax.data.prepare.raw_rows import RowEncoder, save_encoding
from pathlib import Path
warnings.simplefilter("ignore")
folder = Path(sys.argv[1])
data = PreparedData(folder)
save_encoding(folder, data.manifest, folder / "run" / "encoding")
encoder = RowEncoder(folder / "run")
table = pyarrow.csv.read_csv(sys.argv[2])
found = {}
for rows in (1, 1000, 100_000):
    part, times = table.slice(0, rows), []
    for _ in range(7):
        begin = time.perf_counter(), time.process_time()
        list(encoder.batches(part))
        times.append([time.perf_counter() - begin[0], time.process_time() - begin[1]])
    found[f"{rows:,} rows"] = [sorted(each)[3] * 1e3 for each in zip(*times)]
print(json.dumps(found))
"""


def write_lines(path: Path, count: int) -> None:
    """Writes lines whose numbers and categories are skewed, and some are missing."""
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        for first in range(0, count, 200_000):
            size = min(200_000, count - first)
            columns = [rng.integers(2, size=size).astype(str)]
            for _ in range(13):
                numbers = (rng.pareto(0.8, size) * 3).clip(0, 65_000).astype(int) - 1
                columns.append(_with_missing(rng, numbers.astype(str), 0.2))
            for values in VALUES:
                drawn = (values * rng.random(size) ** 4).astype(np.uint64) + 1
                hashed = drawn * np.uint64(2654435761) % np.uint64(2**32)
                texts = np.array([f"{each:08x}" for each in hashed.tolist()])
                columns.append(_with_missing(rng, texts, 0.05))
            lines = map("\t".join, zip(*columns, strict=True))
            file.write("\n".join(lines) + "\n")


def _with_missing(
    rng: np.random.Generator, texts: np.ndarray, share: float
) -> np.ndarray:
    return np.where(rng.random(len(texts)) < share, "", texts)


def write_rows(path: Path, count: int) -> None:
    """Writes rows of one's own: categories of several sizes, a list, a number."""
    rng = np.random.default_rng(1)
    columns = {
        "label": rng.integers(2, size=count),
        **{f"c{n}": (n * rng.random(count) ** 3).astype(int) for n in (9, 999, 10**5)},
        "user": [f"u{n}" for n in (50_000 * rng.random(count) ** 2).astype(int)],
        "tags": [
            "|".join(f"t{n}" for n in r) for r in rng.integers(30, size=(count, 3))
        ],
        "price": rng.lognormal(2, size=count).round(2),
    }
    with path.open("w") as file:
        file.write(",".join(columns) + "\n")
        file.writelines(
            ",".join(map(str, row)) + "\n"
            for row in zip(*columns.values(), strict=True)
        )


def run(*arguments: str | Path) -> tuple[str, list[float]]:
    """Runs Python: the last line that it printed, and seconds, processor seconds and
    peak GB of the process."""
    path = os.pathsep.join([str(HERE), str(HERE / "kernels")])
    with tempfile.TemporaryFile() as out:
        begin = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            cwd=HERE,
            env=os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
            stdout=out,
        )
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        if status:
            raise SystemExit(f"{arguments[0]} ended with {status}")
        out.seek(0)
        printed = out.read().decode().strip().rpartition("\n")[2]
    return printed, [seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6]


def one_round(folder: Path, memory: str) -> dict[str, dict[str, list[float]]]:
    """Returns the lines of each table: columns of figures by name."""
    prepared, own, plain = (folder / name for name in ("a", "b", "plain"))
    raw, rows = folder / "train.txt", folder / "rows.csv"
    prepare = ("-c", EMBARK, "data", "prepare")
    found = {}
    _, found["embark data prepare"] = run(
        *prepare, "criteo-kaggle", "--raw", folder, "--out", prepared
    )
    for name, program in (("DuckDB's SQL by hand", SQL), ("Polars", POLARS)):
        if name == "Polars" and importlib.util.find_spec("polars") is None:
            continue
        with tempfile.TemporaryDirectory(dir=folder) as out:
            _, found[name] = run("-c", program, raw, out, memory)
    tags = ("dense.price=log", "features.tags={separator: '|'}")
    _, found["embark data prepare csv"] = run(
        *prepare, "csv", *tags, "--raw", rows, "--out", own
    )
    tables = {"Preparing: s, CPU s, peak GB": found}
    read, _ = run("-c", READ, prepared, plain)
    tables["Reading: M samples/s, M samples/CPU s"] = json.loads(read)
    encode, _ = run("-c", ENCODE, own, rows)
    tables["Encoding: ms, CPU ms"] = json.loads(encode)
    for path in (prepared, own, plain):
        subprocess.run(["rm", "-r", str(path)], check=True)
    return tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=1, help="Medians are shown.")
    parser.add_argument("--memory", default="4GB", help="Of SQL by hand.")
    parser.add_argument("--folder", type=Path, help="Where files go, 1 KB a line.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(scratch)
        write_lines(folder / "train.txt", options.lines)
        write_rows(folder / "rows.csv", min(options.lines, 200_000))
        rounds = [one_round(folder, options.memory) for _ in range(options.rounds)]
    for title, lines in rounds[0].items():
        print(f"\n{title}")
        for name in lines:
            columns = zip(*(each[title][name] for each in rounds), strict=True)
            print(f"  {name:24}", *(f"{statistics.median(c):8.2f}" for c in columns))


if __name__ == "__main__":
    main()
