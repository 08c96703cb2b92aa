"""Times a train step on CPU beside TorchRec and FBGEMM, in turn, on the same batches.

    python experiments/cpu_step/run.py --peer-python peer-venv/bin/python

See README.md beside this.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from embark_jax.bench.step import BATCHES
from embark_jax.config import reading
from experiments.results import output_of

HERE = Path(__file__).parent
CONFIG = HERE / "config.yaml"
QUIET_CORES = 0.1
"""Runs are dropped where other processes used more than this many cores."""
COMPARISONS = (
    ("lookup_ms", "fbgemm"),
    ("lookup_and_update_ms", "fbgemm"),
    ("step_ms", "torchrec_fused"),
    ("step_ms", "torchrec_dmp"),
)


def save_batches(path: Path) -> None:
    """What both sides train on: full bags of ids by a power law, coin-flip labels."""
    config = reading.load(CONFIG, ())
    rng, size = np.random.default_rng(0), config.train.batch_size
    features = config.embedding.features
    rows = [table.rows for table in config.embedding.tables.values()]
    arrays = {"rows": np.array(rows), "batches": np.array(BATCHES)}
    for i in range(BATCHES):
        dense = rng.standard_normal((size, config.data.dense_features))
        arrays[f"{i}.dense"] = dense.astype(np.float32)
        arrays[f"{i}.labels"] = rng.integers(0, 2, size).astype(np.float32)
        for table_rows, (name, feature) in zip(rows, features.items(), strict=True):
            shape = size, feature.hotness
            exponent = config.data.zipf_exponent
            arrays[f"{i}.{name}"] = zipf_ids(rng, shape, table_rows, exponent)
    np.savez(path, **arrays)


def zipf_ids(rng, shape, rows: int, exponent: float) -> np.ndarray:
    """int32 ids; rank k is drawn as often as k to the -exponent, and hot ids lie apart.

    Drawn from the continuous law between half and rows plus a half, and rounded.
    """
    power = 1 - exponent
    low, high = 0.5**power, (rows + 0.5) ** power
    rank = (low + rng.random(shape) * (high - low)) ** (1 / power) - 0.5
    rank = np.minimum(rank.astype(np.int64), rows - 1)
    return (rank * 2654435761 % rows).astype(np.int32)  # a prime: a permutation


def run_side(command: list[str]) -> dict:
    environment = {**os.environ}
    environment.pop("OMP_NUM_THREADS", None)
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment)
    return json.loads(done.stdout.decode().splitlines()[-1])


def summary(runs: list[dict]) -> list[dict]:
    """Medians over the quiet runs of each side, and their ratio."""
    rows = []
    for what, peer in COMPARISONS:
        times = {
            side: [
                run[side][what]
                for run in runs
                if side in run and run[side]["other_cores"] <= QUIET_CORES
            ]
            for side in ("embark_jax", peer)
        }
        row = {"what": what, "peer": peer}
        for side, found in times.items():
            name = "ours" if side == "embark_jax" else "theirs"
            row[f"{name}_ms"] = statistics.median(found) if found else None
            row[f"{name}_runs"] = len(found)
        if all(times.values()):
            row["theirs_over_ours"] = row["theirs_ms"] / row["ours_ms"]
        rows.append(row)
    return rows


def show(rows: list[dict]) -> str:
    lines = [
        "| | ours, ms (runs) | peer, ms (runs) | peer / ours |",
        "|---|---|---|---|",
    ]
    for row in rows:
        cells = [f"{row['what'].removesuffix('_ms')} – {row['peer']}"]
        for name in ("ours", "theirs"):
            value = row[f"{name}_ms"]
            shown = "–" if value is None else f"{value:.1f}"
            cells.append(f"{shown} ({row[f'{name}_runs']})")
        cells.append(f"{row.get('theirs_over_ours', float('nan')):.2f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", required=True, help="with torch and torchrec")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    out = output_of(parser, args, HERE / "results.json", free=["peer_python"])
    runs: list[dict] = []
    with tempfile.TemporaryDirectory() as folder:
        batches = str(Path(folder) / "batches.npz")
        save_batches(Path(batches))
        sides = (
            [sys.executable, str(HERE / "ours.py"), str(CONFIG), batches],
            [args.peer_python, str(HERE / "peer.py"), batches],
        )
        for repeat in range(args.repeats):
            for command in sides:
                runs.append(run_side(command))
                print(f"repeat {repeat + 1}: {json.dumps(runs[-1])}", flush=True)
    rows = summary(runs)
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "quiet_cores": QUIET_CORES,
        "summary": rows,
        "runs": runs,
    }
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(show(rows))


if __name__ == "__main__":
    main()
