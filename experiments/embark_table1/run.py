"""EMBark's Table 1 and ablation, simulated.

    python -m experiments.embark_table1.run

writes results.json and plot.png beside this file. See README.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from embark_jax.config.reading import load_table_list
from embark_jax.plans import fleet
from experiments.embark_table1.job import Job, job_of_list
from experiments.embark_table1.system import simulate_ablation
from experiments.results import output_of

FOLDER = Path(__file__).parent
PUBLISHED = {"DLRM-DCNv2": 75, "T180": 11, "T200": 15, "T510": 8, "T7": 74}
"""Achieved, million samples/s on up to 128 H100: EMBark, Table 1."""
PUBLISHED_SPEEDUP = {"mean": 1.5, "most": 1.77}
PUBLISHED_COMMUNICATION = {8: 0.25, 128: 0.51}
"""Share of the baseline's step, by GPUs: EMBark, abstract and NVIDIA's blog post."""
NODES = 16
FITS_ONE_NODE = ("DLRM-DCNv2", "T180", "T200", "T510")
MLPERF_BATCH = 135_168


def job_of(name: str, nodes: int, batch: int | None = None) -> Job:
    """A model on DGX H100."""
    listed = load_table_list(name.lower().replace("-", "_"))
    machines = fleet.dgx_h100(nodes)
    return job_of_list(listed, machines, batch, kernels="mosaic_gpu")


def ablation(name: str, batch: int | None = None) -> dict[str, Any]:
    """The baseline and its improvements on 128 GPUs."""
    steps = list(simulate_ablation(job_of(name, NODES, batch)))
    final, published = steps[-1].samples_per_s / 1e6, PUBLISHED[name]
    return {
        "model": name,
        "batch_size": steps[0].batch_size,
        "published": published,
        "simulated": final,
        "error": final / published - 1,
        "speedup": steps[0].timeline.step_ms / steps[-1].timeline.step_ms,
        "steps": [step.record() for step in steps],
    }


def communication(name: str, nodes: int) -> dict[str, Any]:
    """Of the baseline, as the fleet grows."""
    baseline = next(simulate_ablation(job_of(name, nodes)))
    return {
        "model": name,
        "gpus": 8 * nodes,
        "exposed": baseline.exposed_share,
        "waiting": baseline.waiting_share,
    }


def show(results: dict[str, Any]) -> None:
    """Prints the tables of the README."""
    print("| model | GPUs | batch | published, M samples/s | simulated | error", end="")
    print(" | × overlap | × sharding | × clusters |\n" + 9 * "|---" + "|")
    for row in (*results["table1"], results["dcnv2_at_mlperf_batch"]):
        first_ms = row["steps"][0]["step_ms"]
        factors = [f"{first_ms / step['step_ms']:.2f}" for step in row["steps"][1:]]
        print(
            f"| {row['model']} | {8 * NODES} | {row['batch_size']:,} | "
            f"{row['published']} | {row['simulated']:.1f} | {row['error']:+.0%} | "
            + " | ".join(factors)
            + " |"
        )
    print(
        "\n| GPUs | only links work | and waiting for slower GPUs |\n"
        + 3 * "|---"
        + "|"
    )
    for gpus in dict.fromkeys(row["gpus"] for row in results["communication"]):
        rows = [row for row in results["communication"] if row["gpus"] == gpus]
        exposed, waiting = (
            statistics.mean(row[key] for row in rows) for key in ("exposed", "waiting")
        )
        print(f"| {gpus} | {exposed:.0%} | {exposed + waiting:.0%} |")


def plot(results: dict[str, Any], path: Path) -> None:
    """Throughput beside what was published, and what each improvement gains."""
    rows = results["table1"]
    names, place = [row["model"] for row in rows], np.arange(len(rows))
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for shift, key in ((-0.2, "published"), (0.2, "simulated")):
        left.bar(place + shift, [row[key] for row in rows], 0.4, label=key)
    left.set(title="128 GPUs", ylabel="million samples/s")
    below = np.ones(len(rows))
    for k, step in enumerate(rows[0]["steps"][1:], start=1):
        first = [row["steps"][0]["step_ms"] for row in rows]
        speedup = np.divide(first, [row["steps"][k]["step_ms"] for row in rows])
        right.bar(place, speedup - below, 0.6, below, label=step["system"])
        below = speedup
    for name, value in PUBLISHED_SPEEDUP.items():
        right.axhline(value, color="gray", linestyle="--", label=f"published, {name}")
    right.set(ylim=(1, 2.2), ylabel="times the baseline's throughput")
    for axis in (left, right):
        axis.set_xticks(place, names)
        axis.legend(frameon=False)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=PUBLISHED, default=[*PUBLISHED])
    parser.add_argument("--out", type=Path, help="a folder")
    asked = parser.parse_args()
    out = output_of(parser, asked, FOLDER)
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {
        "table1": [ablation(name) for name in asked.models],
        "dcnv2_at_mlperf_batch": ablation("DLRM-DCNv2", MLPERF_BATCH),
        "communication": [
            communication(name, nodes)
            for nodes in (1, 2, 4, 8, 16)
            for name in FITS_ONE_NODE
            if name in asked.models
        ],
        "published_communication": PUBLISHED_COMMUNICATION,
    }
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    plot(results, out / "plot.png")
    show(results)


if __name__ == "__main__":
    main()
