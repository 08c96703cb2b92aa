"""What compression costs in accuracy; see README.md beside this.

    python experiments/compression/run.py

Writes results.json after every run, goes on where it was interrupted, and prints the
table of the README.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.progress import track

from embark_jax.config import reading
from embark_jax.run.dataset import read_dataset

HERE = Path(__file__).parent
CONFIGS = HERE.parent.parent / "configs"
RESULTS = HERE / "results.json"
EXPERIMENTS = ("movielens_100k", "quickstart")
SEEDS = (0, 1, 2)
WIRES = (
    ("float32", "float32"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float16"),
    ("bfloat16", "float8_e4m3"),
)
"""Of rows and partial sums, and of gradients."""


def main() -> None:
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for seed, experiment, wire in track(
        list(itertools.product(SEEDS, EXPERIMENTS, WIRES)), "training"
    ):
        name = f"{experiment}, {wire[0]} rows, {wire[1]} gradients, seed {seed}"
        if name not in results:
            results[name] = train(CONFIGS / f"{experiment}.yaml", wire, seed)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


def train(path: Path, wire: tuple[str, str], seed: int) -> dict[str, float]:
    """The test metrics of a run on 2 × 4 CPU devices with RB and UB tables alone, so
    that all rows and gradients of embeddings travel compressed."""
    config = reading.load(path)
    tables = read_dataset(config).tables
    seeds = [f"seed={seed}"]
    if config.data.kind == "synthetic":
        seeds.append(f"data.seed={seed}")
    with tempfile.TemporaryDirectory() as workdir:
        command = [
            sys.executable,
            "-c",
            "from embark_jax.cli import main; main()",
            "train",
            path,
            "--workdir",
            workdir,
            "mesh.nodes=2",
            "mesh.gpus_per_node=4",
            *seeds,
            f"embedding.wire.rows={wire[0]}",
            f"embedding.wire.gradients={wire[1]}",
            *(
                f"embedding.tables.{each.name}.cluster={cluster}"
                for each, cluster in zip(tables, itertools.cycle(("rb", "ub")))
            ),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lines = (Path(workdir) / "metrics.jsonl").read_text().splitlines()
    final = json.loads(lines[-1])
    return {name: final[name] for name in ("test_auc", "test_log_loss")}


def seed_aucs(
    results: dict[str, dict[str, float]], experiment: str, wire: tuple[str, str]
) -> dict[int, float]:
    """Test AUC by seed, of the runs there are."""
    names = {
        seed: f"{experiment}, {wire[0]} rows, {wire[1]} gradients, seed {seed}"
        for seed in SEEDS
    }
    return {
        seed: results[name]["test_auc"]
        for seed, name in names.items()
        if name in results
    }


def table(results: dict[str, dict[str, float]]) -> str:
    """Test AUC of each seed, and the mean of its differences to float32's, with the
    largest of them, in Markdown."""
    seeds = " | ".join(f"seed {seed}" for seed in SEEDS)
    lines = [
        f"| experiment | rows | gradients | {seeds} | mean difference | largest |",
        "|---" * (5 + len(SEEDS)) + "|",
    ]
    for experiment in EXPERIMENTS:
        aucs = {wire: seed_aucs(results, experiment, wire) for wire in WIRES}
        exact = aucs[WIRES[0]]
        for wire, found in aucs.items():
            off = [found[seed] - exact[seed] for seed in found]
            shown = [f"{found[seed]:.5f}" if seed in found else "–" for seed in SEEDS]
            cells = [experiment, *wire, *shown]
            cells += [f"{statistics.mean(off):+.5f}", f"{max(map(abs, off)):.5f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
