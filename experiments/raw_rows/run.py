"""From a raw CSV to scored raw rows, as a new user goes: three commands, each timed.

The CSV is made of MovieLens-100k (``embark data movielens-100k``): one line a rating,
with genres as ``Action|Comedy``. The latest tenth is held out; its last half, the test
set, is then scored from its raw lines, and must give the metrics of the run's own test.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from embark_jax.data import movielens_100k_folder

HERE = Path(__file__).parent
COLUMNS = [
    "user",
    "item",
    "age",
    "gender",
    "occupation",
    "year",
    "genres",
    "when",
    "stars",
]


def read(path: Path) -> list[list[str]]:
    lines = path.read_text("utf-8").splitlines()[1:]
    return [line.split("\t") for line in lines]


def write_csv(folder: Path) -> list[list[str]]:
    """``ratings.csv`` and its rows."""
    source = movielens_100k_folder()
    users = {row[0]: row for row in read(source / "ml-100k.user")}
    items = {row[0]: row for row in read(source / "ml-100k.item")}
    rows = []
    for user, item, stars, when in read(source / "ml-100k.inter"):
        _, age, gender, occupation, *_ = users[user]
        _, _, year, genres = items[item]
        genres = genres.replace(" ", "|")
        rows.append([user, item, age, gender, occupation, year, genres, when, stars])
    write(folder / "ratings.csv", rows)
    return rows


def write(path: Path, rows: list[list[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])


def embark(folder: Path, *arguments: str) -> tuple[str, dict[str, float]]:
    """What the command prints, and its seconds by the wall and of all CPUs."""
    command = [sys.executable, "-c", "from embark_jax.cli import main; main()"]
    before, start = os.times(), time.monotonic()
    done = subprocess.run(
        [*command, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    wall, after = time.monotonic() - start, os.times()
    cpu = (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )
    return done.stdout, {"wall_s": round(wall, 1), "cpu_s": round(cpu, 1)}


def main() -> None:
    folder, results = Path(tempfile.mkdtemp()), {}
    rows = write_csv(folder)
    for name in ("columns.yaml", "config.yaml"):
        shutil.copy(HERE / name, folder)
    _, results["prepare"] = embark(
        folder,
        "data",
        "prepare",
        "csv",
        "--raw",
        "ratings.csv",
        "--out",
        "data",
        "--columns",
        "columns.yaml",
    )
    _, results["train"] = embark(folder, "train", "config.yaml", "--workdir", "run")
    final = json.loads((folder / "run/metrics.jsonl").read_text().splitlines()[-1])
    rows.sort(key=lambda row: float(row[-2]))
    write(folder / "new.csv", rows[len(rows) - final["test_samples"] :])
    said, results["predict"] = embark(
        folder, "predict", "run", "--in", "new.csv", "--out", "scores.csv"
    )
    (auc,) = map(float, re.findall(r"AUC (\d\.\d+)", said))
    results["auc"] = {"of the run": final["test_auc"], "of raw rows": auc}
    results["rows"] = {"prepared": len(rows), "scored": final["test_samples"]}
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
