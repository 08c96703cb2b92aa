"""EMBark's Table 1 and ablation, simulated.

    python -m experiments.embark_table1.run

writes results.json and plot.png beside this file. See README.md.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console

from embark_jax import planner, simulator
from embark_jax.plans import fleet
from embark_jax.simulator import Job
from experiments.embark_table1.loads import count
from experiments.embark_table1.placements import table_row_wise
from experiments.embark_table1.plot import plot
from experiments.embark_table1.system import (
    best_clusters,
    plan_embark,
    simulate_ablation,
    simulate_loads,
)

FOLDER = Path(__file__).parent
MODELS = FOLDER.parents[1] / "configs" / "models"
PUBLISHED = {"DLRM-DCNv2": 75, "T180": 11, "T200": 15, "T510": 8, "T7": 74}
"""Achieved, million samples/s on up to 128 H100: EMBark, Table 1."""
PUBLISHED_SPEEDUP = {"mean": 1.5, "most": 1.77}
PUBLISHED_COMMUNICATION = {8: 0.25, 128: 0.51}
"""Share of the baseline's step, by GPUs: EMBark, abstract and NVIDIA's blog post."""
PAPER_WIDTHS = {64: 128, 256: 128}
"""Widths of the released lists that the paper does not name, and its own instead: it
names 32 and 128 for T180 and T7, 128 for T200."""
RELEASED_WIDTHS = ("T180", "T200", "T7")
"""Models of whose tables some have other widths than the paper says."""
SHUFFLES = 10
NODES = 16
FITS_ONE_NODE = ("DLRM-DCNv2", "T180", "T200", "T510")
MLPERF_BATCH = 135_168
CONSTANTS = ("memory", "link", "flops", "kernel_us")
LATENCIES = ("launch_us", "node_hop_us", "network_hop_us")
CHANGE = 1.25

console = Console(stderr=True)


def list_of(name: str) -> planner.TableList:
    """The table list of a model."""
    path = MODELS / f"{name.lower().replace('-', '_')}.yaml"
    return planner.read_table_list(path.read_text())


def job_of(name: str, nodes: int, batch: int | None = None, **changed: Any) -> Job:
    """A model on DGX H100; ``changed`` replaces constants and the skew."""
    listed = list_of(name)
    machines = fleet.dgx_h100(nodes)
    zipf_exponent = changed.pop("zipf_exponent", None)
    efficiency = dataclasses.replace(machines.efficiency, **changed)
    machines = dataclasses.replace(machines, efficiency=efficiency)
    return simulator.job_of_list(
        listed, machines, batch, zipf_exponent, kernels="mosaic_gpu"
    )


def ablation(name: str, batch: int | None = None, **changed: Any) -> dict[str, Any]:
    """The baseline and its improvements on 128 GPUs."""
    steps = list(simulate_ablation(job_of(name, NODES, batch, **changed)))
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


def spread(name: str) -> dict[str, Any]:
    """Which clusters tables are in at last, how far the throughput depends on which
    devices have the hottest rows, and the overlapped baseline if all its devices had
    equal loads: no sharding can gain more."""
    job = job_of(name, NODES)
    model = job.features, job.workload
    clusters = best_clusters(job)
    placements = plan_embark(job, clusters)
    shuffled = [
        simulate_loads("", job, count(placements, *model, seed)).samples_per_s / 1e6
        for seed in range(SHUFFLES)
    ]
    baseline = count(table_row_wise(job.tables, job.workload), *model)
    return {
        "model": name,
        "clusters": Counter(clusters),
        "slowest": min(shuffled),
        "mean": sum(shuffled) / SHUFFLES,
        "fastest": max(shuffled),
        "balanced_ms": simulate_loads("", job, baseline.balanced()).timeline.step_ms,
    }


def paper_widths(name: str) -> dict[str, Any]:
    """The last step with the widths that the paper names."""
    listed = list_of(name)
    groups = tuple(
        group.model_copy(update={"dim": PAPER_WIDTHS.get(group.dim, group.dim)})
        for group in listed.tables
    )
    wider = listed.model_copy(update={"tables": groups})
    row: dict[str, Any] = {"model": name, "published": PUBLISHED[name]}
    for widths, each in {"released": listed, "paper": wider}.items():
        job = simulator.job_of_list(each, fleet.dgx_h100(NODES), kernels="mosaic_gpu")
        *_, final = simulate_ablation(job)
        row[widths] = {
            "parameters": sum(table.rows * table.dim for table in job.tables),
            "flops": 6 * job.network.parameters,
            "simulated": final.samples_per_s / 1e6,
        }
    return row


def communication(name: str, nodes: int) -> dict[str, Any]:
    """Of the baseline, as the fleet grows."""
    baseline = next(simulate_ablation(job_of(name, nodes)))
    return {
        "model": name,
        "gpus": 8 * nodes,
        "exposed": baseline.exposed_share,
        "waiting": baseline.waiting_share,
    }


def sensitivity(before: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Throughput and speedup of each model with one constant better than it is."""
    efficiency = fleet.gpu_efficiency()

    def scaled(names, factor):
        return {name: factor * getattr(efficiency, name) for name in names}

    variants: dict[str, dict[str, Any]] = {
        **{f"{name} × {CHANGE}": scaled([name], CHANGE) for name in CONSTANTS[:3]},
        f"kernel_us ÷ {CHANGE}": scaled(["kernel_us"], 1 / CHANGE),
        f"latencies ÷ {CHANGE}": scaled(LATENCIES, 1 / CHANGE),
        "Zipf exponent 1.2": {"zipf_exponent": 1.2},
    }
    rows = []
    for variant, changed in variants.items():
        for name, known in before.items():
            console.log(f"{variant}: {name}")
            found = ablation(name, known["batch_size"], **changed)
            rows.append(
                {
                    "changed": variant,
                    "model": name,
                    "throughput": found["simulated"] / known["simulated"] - 1,
                    "speedup": found["speedup"],
                }
            )
    return rows


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
    print("\n| model | DP | UB | RB | overlapped, ms | evenly loaded | of shuffles |")
    print(7 * "|---" + "|")
    for row, ablated in zip(results["spread"], results["table1"], strict=True):
        numbers = " | ".join(str(row["clusters"][c]) for c in ("dp", "ub", "rb"))
        overlapped_ms = ablated["steps"][1]["step_ms"]
        print(
            f"| {row['model']} | {numbers} | {overlapped_ms:.2f} | "
            f"{row['balanced_ms']:.2f} | "
            f"{row['slowest']:.1f} to {row['fastest']:.1f} |"
        )
    print("\n| model | widths | parameters | MFLOP | M samples/s | published |")
    print(6 * "|---" + "|")
    for row in results["paper_widths"]:
        for widths in ("released", "paper"):
            found = row[widths]
            print(
                f"| {row['model']} | {widths} | {found['parameters'] / 1e9:.1f}B | "
                f"{found['flops'] / 1e6:.0f} | {found['simulated']:.1f} | "
                f"{row['published']} |"
            )
    print("\n| | " + " | ".join(PUBLISHED) + " |\n" + 6 * "|---" + "|")
    for changed in dict.fromkeys(row["changed"] for row in results["sensitivity"]):
        effects = [
            f"{100 * row['throughput']:+.0f}"
            for row in results["sensitivity"]
            if row["changed"] == changed
        ]
        print(f"| {changed} | " + " | ".join(effects) + " |")


def main() -> None:
    table1 = []
    for name in PUBLISHED:
        console.log(f"{name} on {8 * NODES} GPUs")
        table1.append(ablation(name))
    results: dict[str, Any] = {
        "constants": dataclasses.asdict(fleet.gpu_efficiency()),
        "table1": table1,
        "dcnv2_at_mlperf_batch": ablation("DLRM-DCNv2", MLPERF_BATCH),
        "communication": [
            communication(name, nodes)
            for nodes in (1, 2, 4, 8, 16)
            for name in FITS_ONE_NODE
        ],
        "spread": [spread(name) for name in PUBLISHED],
        "paper_widths": [paper_widths(name) for name in RELEASED_WIDTHS],
        "published_speedup": PUBLISHED_SPEEDUP,
        "published_communication": PUBLISHED_COMMUNICATION,
    }
    results["sensitivity"] = sensitivity({row["model"]: row for row in table1})
    (FOLDER / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    plot(results, FOLDER / "plot.png")
    show(results)


if __name__ == "__main__":
    sys.exit(main())
