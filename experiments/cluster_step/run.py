"""The train step on clusters of H100s, simulated: what each change of it gains.

    python -m experiments.cluster_step.run

writes results.json beside this file and prints the tables of the README.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from rich.console import Console

from embark_jax import planner, simulator
from embark_jax.config.reading import load_table_list
from embark_jax.plans import fleet
from embark_jax.plans.wire import Wire
from experiments.embark_table1.job import Job, job_of_list
from experiments.embark_table1.system import simulate_ablation
from experiments.results import output_of

FOLDER = Path(__file__).parent
MODELS = ("dlrm_dcnv2", "t180", "t200", "t510", "t7")
NODES = (1, 8, 16)
BATCHES = (65_536, 135_168)
STEPS: dict[str, dict[str, Any]] = {
    "plain": {"overlap": False},
    "16-bit rows": {"wire": Wire("bfloat16", "bfloat16")},
    "look-ahead": {"overlap": True},
    "16-bit sums": {"wire": Wire("bfloat16", "bfloat16", "bfloat16")},
}
"""Changes of a step; each comes on top of those before it."""
FLOAT32 = {"overlap": True}
"""The same without any 16 bits on the wire."""
WEAK_MODELS = ("dlrm_dcnv2", "t180")
WEAK_NODES = (1, 2, 4, 8, 16, 32, 64, 128)
WEAK_BATCH = 8192
"""Samples a GPU, as many as 65,536 on one node."""

console = Console(stderr=True)


def changed(job: Job, changes: dict[str, Any]) -> Job:
    """Returns a job whose workload has these changes."""
    workload = dataclasses.replace(job.workload, **changes)
    return dataclasses.replace(job, workload=workload)


def simulated(job: Job) -> dict[str, Any]:
    """Plans a job and simulates its step."""
    plan = planner.plan_for(job.workload, job.tables, job.features)
    step = simulator.simulate_program(plan.placements, plan.features, job.workload)
    return {
        "step_ms": step.timeline.step_ms,
        "samples_per_s": step.samples_per_s,
        "exposed": step.exposed_share,
    }


def cumulative() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the name of each change and all changes up to it."""
    changes: dict[str, Any] = {}
    for name, change in STEPS.items():
        changes = changes | change
        yield name, changes


def steps(model: str, nodes: int, batch: int) -> dict[str, Any]:
    """Simulates the steps of a model, and EMBark's system, on the same constants."""
    machines = fleet.dgx_h100(nodes)
    job = job_of_list(load_table_list(model), machines, batch, kernels="mosaic_gpu")
    row: dict[str, Any] = {"model": model, "gpus": machines.devices, "batch": batch}
    try:
        row["steps"] = {
            name: simulated(changed(job, changes)) for name, changes in cumulative()
        }
        row["float32"] = simulated(changed(job, FLOAT32))
    except ValueError as error:
        return row | {"refused": str(error).splitlines()[0]}
    if nodes == NODES[-1]:
        *_, embark = simulate_ablation(job)
        row["embark_ms"] = embark.timeline.step_ms
    return row


def weak_scaling(model: str) -> Iterator[dict[str, Any]]:
    """Simulates a model on more and more nodes with a fixed batch a GPU."""
    first, *_, last = cumulative()
    for nodes in WEAK_NODES:
        machines = fleet.dgx_h100(nodes)
        batch = WEAK_BATCH * machines.devices
        job = job_of_list(load_table_list(model), machines, batch, kernels="mosaic_gpu")
        row: dict[str, Any] = {"model": model, "nodes": nodes, "batch": batch}
        for name, changes in (first, last):
            start = time.perf_counter()
            row[name] = simulated(changed(job, changes))
            row[name]["planning_s"] = time.perf_counter() - start
        yield row


def million(samples_per_s: float) -> str:
    return f"{samples_per_s / 1e6:.1f}"


def show(results: dict[str, Any]) -> None:
    """Prints the tables of the README."""
    names = [*STEPS, "float32, look-ahead"]
    print("| model | GPUs | batch | " + " | ".join(names) + " | exposed | EMBark |")
    print((len(names) + 5) * "|---" + "|")
    for row in results["steps"]:
        head = f"| {row['model']} | {row['gpus']} | {row['batch']:,} | "
        if "refused" in row:
            print(head + "does not fit |")
            continue
        simulations = [*row["steps"].values(), row["float32"]]
        figures = [million(step["samples_per_s"]) for step in simulations]
        first, *_, last = row["steps"].values()
        exposed = f"{first['exposed']:.0%} → {last['exposed']:.0%}"
        embark = "–"
        if "embark_ms" in row:
            embark = million(1e3 * row["batch"] / row["embark_ms"])
        print(head + " | ".join([*figures, exposed, embark]) + " |")
    first, *_, last = STEPS
    print("\n| model | nodes | speedup, plain | speedup | exposed | planned in |")
    print(6 * "|---" + "|")
    for model in WEAK_MODELS:
        rows = [row for row in results["weak_scaling"] if row["model"] == model]
        for row in rows:
            speedups = [
                row[name]["samples_per_s"] / rows[0][name]["samples_per_s"]
                for name in (first, last)
            ]
            print(
                f"| {model} | {row['nodes']} | "
                + " | ".join(f"{speedup:.1f}" for speedup in speedups)
                + f" | {row[last]['exposed']:.0%} | {row[last]['planning_s']:.0f} s |"
            )


def plot(results: dict[str, Any], path: Path) -> None:
    """Plots the speedup over one node beside the ideal one."""
    figure, axes = plt.subplots(figsize=(6, 4))
    first, *_, last = STEPS
    for color, model in enumerate(WEAK_MODELS):
        rows = [row for row in results["weak_scaling"] if row["model"] == model]
        nodes = [row["nodes"] for row in rows]
        for name, style in ((first, "--"), (last, "-")):
            rates = [row[name]["samples_per_s"] for row in rows]
            speedups = [rate / rates[0] for rate in rates]
            label = f"{model}, {name if name == first else 'all changes'}"
            axes.plot(nodes, speedups, style, color=f"C{color}", label=label)
    axes.plot(WEAK_NODES, WEAK_NODES, ":", color="gray", label="ideal")
    axes.set(xlabel="nodes of 8 H100", ylabel="speedup over one node")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.legend()
    figure.savefig(path, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--out", type=Path, help="a folder")
    given = parser.parse_args()
    out = output_of(parser, given, FOLDER)
    out.mkdir(parents=True, exist_ok=True)
    cases = list(itertools.product(given.models, NODES, BATCHES))
    results: dict[str, Any] = {"steps": []}
    for model, nodes, batch in cases:
        console.log(f"{model} on {8 * nodes} GPUs, {batch:,} samples")
        results["steps"].append(steps(model, nodes, batch))
    results["weak_scaling"] = []
    for model in set(WEAK_MODELS) & set(given.models):
        for row in weak_scaling(model):
            console.log(f"{model} on {row['nodes']} nodes")
            results["weak_scaling"].append(row)
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    plot(results, out / "weak_scaling.svg")
    show(results)


if __name__ == "__main__":
    main()
