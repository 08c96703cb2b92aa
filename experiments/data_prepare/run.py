"""Prepares a made-up file in Criteo's raw format, beside a plain Polars pipeline.

    python experiments/data_prepare/run.py --rows 10000000

See README.md beside this.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from raw_file import write

from embark_jax.data import PreparedData

HERE = Path(__file__).parent
MIN_COUNT = 2
SIDES = ("embark", "polars")


def measure(command: list[str]) -> dict:
    """Seconds, processor seconds and the most memory of a command."""
    start = time.perf_counter()
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise subprocess.CalledProcessError(status, command)
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_rss_bytes": usage.ru_maxrss * 1024,
    }


def commands(raw: Path, folder: Path) -> dict[str, list[str]]:
    embark = "from embark_jax.cli import main; main()"
    options = ("--min-count", str(MIN_COUNT))
    return {
        "embark": [
            sys.executable,
            "-c",
            embark,
            "data",
            "prepare",
            "criteo-kaggle",
            "--raw",
            str(raw.parent),
            "--out",
            str(folder / "embark"),
            *options,
        ],
        "polars": [
            sys.executable,
            str(HERE / "with_polars.py"),
            str(raw),
            str(folder / "polars"),
            str(MIN_COUNT),
        ],
    }


def differences(folder: Path) -> int:
    """Test samples on which the two sides differ."""
    data = PreparedData(folder / "embark")
    (batch,) = data.test_batches(data.manifest.rows("test"))
    with pa.memory_map(str(folder / "polars" / "test.arrow")) as file:
        other = pa.ipc.open_file(file).read_all()
    same = np.ones(len(batch), bool)
    same &= batch.labels == other["label"].to_numpy()
    for place, name in enumerate(data.manifest.dense):
        same &= np.isclose(batch.dense[:, place], other[name].to_numpy(), rtol=1e-6)
    for name, ids in batch.ids.items():
        same &= ids[:, 0] == other[name].to_numpy()
    return int((~same).sum())


def pipeline_samples_per_s(folder: Path, batch_size: int, batches: int) -> float:
    """What reading, shuffling and batching alone give, from the prepared files."""
    data = PreparedData(folder / "embark")
    data.train_batch(0, batch_size)
    start = time.perf_counter()
    for step in range(1, batches + 1):
        data.train_batch(step, batch_size)
    return batches * batch_size / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--sides", nargs="*", default=SIDES, choices=SIDES)
    parser.add_argument("--out", type=Path, help="JSON; printed in any case.")
    args = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as name:
        raw = Path(name, "raw", "train.txt")
        raw.parent.mkdir()
        write(raw, args.rows)
        result = {
            "date": time.strftime("%Y-%m-%d"),
            "rows": args.rows,
            "raw_bytes": raw.stat().st_size,
            "cores": len(os.sched_getaffinity(0)),
        }
        for repeat in range(args.repeats):
            folder = Path(name, str(repeat))
            for side, command in commands(raw, folder).items():
                if side in args.sides:
                    found = measure(command)
                    found["rows_per_s"] = args.rows / found["seconds"]
                    found["load_average"] = os.getloadavg()[0]
                    runs.append({"side": side, **found})
                    print(json.dumps(runs[-1]), flush=True)
            result["pipeline_samples_per_s"] = pipeline_samples_per_s(folder, 2048, 200)
            if len(args.sides) == len(SIDES):
                result["differing_test_samples"] = differences(folder)
    result["runs"] = runs
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
