"""Prepares lines of Criteo's layout, reads them in batches, and encodes raw rows, with
this package and with that of another work tree, alternately.

    python experiments/data_preparation/run.py --lines 1000000 --other ../before

Everything is on the CPU; processor seconds of children are the kernel's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parents[2]
# Numbers of values of C1 to C26 of the Kaggle data.
VALUES = [1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593]
VALUES += [3194, 27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105]
VALUES += [142572]

READ = """
import json, sys, time
from embark_jax.data import BatchChecker, PreparedData
data = PreparedData(sys.argv[1], threads=2)
check = BatchChecker(data.features, data.table_rows, data.dense_features)
steps = data.train_samples // 4096
def shuffled():
    for step in range(steps):
        check(data.train_batch(step, 4096))
def in_order():
    for batch in data.in_file_order("train", 4096):
        check(batch)
found = {}
for read in (shuffled, in_order):
    read()
    rounds = []
    for _ in range(3):
        begin = time.perf_counter(), time.process_time()
        read()
        rounds.append([time.perf_counter() - begin[0], time.process_time() - begin[1]])
    wall, cpu = (sorted(each)[1] for each in zip(*rounds))
    found[read.__name__] = {
        "M samples/s": round(data.train_samples / wall / 1e6, 2),
        "M samples/CPU s": round(data.train_samples / cpu / 1e6, 2),
    }
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
    wall, cpu = (sorted(each)[3] for each in zip(*times))
    found[f"{rows} rows"] = {
        "ms": round(wall * 1e3, 1), "CPU ms": round(cpu * 1e3, 1)
    }
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


def _with_missing(rng: np.random.Generator, texts: np.ndarray, share: float) -> list:
    return np.where(rng.random(len(texts)) < share, "", texts).tolist()


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


def run(tree: Path, *arguments: str) -> tuple[str, dict[str, float]]:
    """Runs Python in a work tree: the last line that it printed, and what it took."""
    path = os.pathsep.join([str(tree), str(tree / "kernels")])
    command = ["/usr/bin/time", "-f", "TOOK %e %U %S %M", sys.executable, *arguments]
    done = subprocess.run(
        command,
        cwd=tree,  # whose package `-c` imports first
        env=os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    *_, took = done.stderr.strip().splitlines()
    wall, user, system, peak_kb = map(float, took.split()[1:])
    cpu = round(user + system, 1)
    return done.stdout.strip().rpartition("\n")[2], {
        "s": wall,
        "CPU s": cpu,
        "peak GB": round(peak_kb / 1e6, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--other", type=Path, help="Another work tree to compare with.")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    trees = {"here": HERE} | (
        {"other": options.other.resolve()} if options.other else {}
    )
    found: dict[str, dict] = {name: {} for name in trees}
    embark = ["-c", "from embark_jax.cli import main; main()", "data", "prepare"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_lines(folder / "train.txt", options.lines)
        write_rows(folder / "rows.csv", 200_000)
        own = ["csv", "dense.price=log", "features.tags={separator: '|'}"]
        for number in range(options.rounds):
            for name, tree in trees.items():
                kaggle, rows = (folder / f"{w} {name} {number}" for w in ("a", "b"))
                raw = ["--raw", str(folder), "--out", str(kaggle)]
                _, took = run(tree, *embark, "criteo-kaggle", *raw)
                raw = ["--raw", str(folder / "rows.csv"), "--out", str(rows)]
                _, own_took = run(tree, *embark, *own, *raw)
                found[name] = {
                    "prepare Criteo": took,
                    "prepare own rows": own_took,
                    "read": json.loads(run(tree, "-c", READ, str(kaggle))[0]),
                    "encode": json.loads(
                        run(tree, "-c", ENCODE, str(rows), str(folder / "rows.csv"))[0]
                    ),
                }
                print(number, name, json.dumps(found[name]), flush=True)


if __name__ == "__main__":
    main()
