"""Batches of hot rows alone: what they cost in accuracy, and gain on FAE's machine.

    python experiments/hot_batches/run.py accuracy    # ten minutes of one core
    python experiments/hot_batches/run.py simulate    # one minute, nothing is trained

Both write results beside this and print the tables of README.md; a run of "accuracy"
that is in its results already is not repeated.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import jax
from rich.progress import track

from embark_jax import planner, simulator
from embark_jax.config import ExperimentConfig, reading
from embark_jax.data import WINDOW_BATCHES
from embark_jax.planner.request.workload import Workload, table_uses
from embark_jax.planner.search.layouts import fewest_slots
from embark_jax.plans import fleet
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.options import Tier
from embark_jax.plans.storage import Placement
from embark_jax.run import experiment
from embark_jax.run.experiment import Experiment
from embark_jax.run.planning import hot_row_bytes

HERE = Path(__file__).parent
CONFIGS = HERE.parents[1] / "configs" / "experiments"
ROWS_DIVIDED_BY = 100
"""Of published tables of more than 10,000 rows, for two CPU cores."""
ZIPF_EXPONENT = 1.05
"""Large columns of Criteo's sample fit 1.03 to 1.08."""
DENSE_FEATURES = {"criteo_kaggle": 13, "avazu": 1}
HOT_SHARE = 0.2
"""Of all rows; it makes about half of the samples all-hot."""
SEEDS = range(5)
ORDERS = {"own order": False, "sorted": True}
NODES, DEVICES = 1, 2

BUDGET_BYTES = 512e6
CASES = (("rmc2", 1024), ("rmc3", 1024), ("rmc2", 16_384), ("rmc3", 16_384))
SHARE = 0.82
"""Of all-hot samples, which FAE counted of Terabyte's with 512 MB."""


def config_of(name: str, *changes: str) -> ExperimentConfig:
    """A published model's tables, the large ones smaller, with synthetic data."""
    path = CONFIGS / name / "dlrm.yaml"
    rows = {
        table: -(-each.rows // ROWS_DIVIDED_BY) if each.rows > 10_000 else each.rows
        for table, each in reading.load(path).embedding.tables.items()
        if each.rows
    }
    return reading.load(
        path,
        [
            "data.kind=synthetic",
            f"data.dense_features={DENSE_FEATURES[name]}",
            f"data.zipf_exponent={ZIPF_EXPONENT}",
            "fleet=this-machine",
            "model.bottom=[64,16]",
            "model.top=[64,1]",
            "embedding.optimizer={kind: rowwise_adagrad, learning_rate: 0.1}",
            "dense_optimizer={kind: adam, learning_rate: 2e-3}",
            "data.test_samples=20000",
            "train.batch_size=1024",
            "train.steps=256",
            "train.eval_every=null",
            f"mesh.nodes={NODES}",
            f"mesh.gpus_per_node={DEVICES}",
            *(f"embedding.tables.{table}.rows={n}" for table, n in rows.items()),
            *changes,
        ],
    )


def prepare(name: str, *changes: str) -> Experiment:
    """A workload with hot rows by one setting: a budget of memory, which the planner
    fills by one threshold of frequency over all tables (FAE's)."""
    config = config_of(name)
    tables = experiment.plan_model(config).tables
    rows_bytes = sum(table.rows * hot_row_bytes(config, table) for table in tables)
    budget = f"embedding.hot_budget={int(HOT_SHARE * rows_bytes)}"
    return experiment.build(config_of(name, budget, *changes))


def accuracy(name: str, seed: int, hot_batches: bool, steps: int) -> dict[str, Any]:
    """The test metrics after a run, and what share of its batches was all-hot."""
    setup = prepare(
        name,
        f"train.hot_batches={str(hot_batches).lower()}",
        f"train.steps={steps}",
        f"seed={seed}",
        f"data.seed={seed}",
    )
    trainer = setup.trainer()
    trainer.fit(setup.training_data, setup.steps, progress=False)
    metrics = trainer.evaluate(setup.dataset.test_batches(setup.plan.batch_size))
    data, size = setup.training_data, setup.config.train.batch_size
    hot = [data.train_batch(step, size).hot for step in range(WINDOW_BATCHES)]
    return {
        "test_auc": metrics.auc,
        "test_log_loss": metrics.log_loss,
        "all_hot": statistics.mean(hot),
        "compilations": trainer.recompilations,
    }


def accuracy_table(results: dict[str, Any]) -> str:
    """Mean and standard deviation over seeds, and the mean of the differences."""
    lines = [
        "| workload | all-hot batches | metric | own order | sorted | difference, "
        "mean ± its standard error |",
        "|---" * 6 + "|",
    ]
    for name in DENSE_FEATURES:
        runs = {
            order: [
                results[key]
                for seed in SEEDS
                if (key := f"{name}, seed {seed}, {order}") in results
            ]
            for order in ORDERS
        }
        if any(len(each) < len(SEEDS) for each in runs.values()):
            continue
        share = statistics.mean(each["all_hot"] for each in runs["sorted"])
        for metric in ("test_auc", "test_log_loss"):
            values = {k: [each[metric] for each in runs[k]] for k in runs}
            off = [b - a for a, b in zip(*values.values(), strict=True)]
            cells = [
                f"{statistics.mean(v):.4f} ({statistics.stdev(v):.4f})"
                for v in values.values()
            ]
            error = statistics.stdev(off) / len(off) ** 0.5
            lines.append(
                f"| {name} | {share:.0%} | {metric.replace('_', ' ')} | "
                + " | ".join(cells)
                + f" | {statistics.mean(off):+.4f} ± {error:.4f} |"
            )
    return "\n".join(lines)


def hot_rows(
    workload: Workload, job: simulator.Job, budget_bytes: float
) -> dict[str, ForcedPlacement]:
    """Hot rows of all tables by one threshold of frequency, within a budget."""
    uses = table_uses(job.tables, job.features, workload)
    low, high = 1e-15, 1.0
    while high > low * 1.001:
        threshold = (low * high) ** 0.5
        counts = []
        for use in uses:
            probability, rows = use.skew.probabilities(use.rows)
            counts.append(int(rows[probability * use.ids >= threshold].sum()))
        taken = sum(
            4 * count * use.table.dim for count, use in zip(counts, uses, strict=True)
        )
        low, high = (low, threshold) if taken < budget_bytes else (threshold, high)
    return {
        table.name: ForcedPlacement("dp")
        if count >= table.rows
        else ForcedPlacement(hot_rows=max(1, count))
        for table, count in zip(job.tables, counts, strict=True)
    }


def planned(
    job: simulator.Job, forced: dict[str, ForcedPlacement], tier: Tier
) -> tuple[Placement, ...]:
    """Placements with cold rows on devices, or in host memory behind as few slots as a
    batch needs."""
    tables = job.tables
    if tier == "host":
        uses = table_uses(tables, job.features, job.workload)
        tables = [
            table
            if forced[table.name].cluster == "dp"
            else dataclasses.replace(
                table, tier=tier, slots=fewest_slots(use, job.workload)
            )
            for table, use in zip(tables, uses, strict=True)
        ]
    return planner.plan_for(
        job.workload, tables, job.features, forced=forced
    ).placements


def measure(model: str, batch: int, tier: Tier) -> dict[str, Any]:
    """Steps of one model in its own order of samples, and sorted, on four V100."""
    listed = planner.load_table_list(model)
    job = simulator.job_of_list(
        listed, fleet.v100(1, 4), batch, zipf_exponent=ZIPF_EXPONENT
    )
    placements = planned(job, hot_rows(job.workload, job, BUDGET_BYTES), tier)
    own = simulator.simulate_program(job, placements)
    free = planner.plan_for(job.workload, job.tables, job.features)
    steps = {
        "planners_own_ms": simulator.simulate_program(job, free.placements),
        "own_order_ms": own,
    }
    both = simulator.simulate_hot_batches(job, placements, SHARE)
    steps |= dict(zip(("all_hot_ms", "mixed_ms"), both, strict=True))
    found = {name: step.timeline.step_ms for name, step in steps.items()}
    found["mean_ms"] = SHARE * found["all_hot_ms"] + (1 - SHARE) * found["mixed_ms"]
    return {"model": model, "batch": batch, "cold_rows": tier, **found}


def simulate() -> None:
    """Simulates all cases."""
    results = [
        measure(model, batch, tier)
        for model, batch in CASES
        for tier in ("device", "host")
    ]
    (HERE / "simulated.json").write_text(json.dumps(results, indent=1) + "\n")
    for case in results:
        figures = [f"{value:.3f}" for key, value in case.items() if key.endswith("_ms")]
        print(
            f"| {case['model'].upper()} | {case['batch']:,} | {case['cold_rows']} | "
            f"{' | '.join(figures)} | {case['own_order_ms'] / case['mean_ms']:.2f} |"
        )


def train(steps: int, path: Path) -> None:
    """Trains with all seeds and orders."""
    jax.config.update("jax_num_cpu_devices", NODES * DEVICES)
    cache = tempfile.TemporaryDirectory()  # seeds share compiled programs
    jax.config.update("jax_compilation_cache_dir", cache.name)
    results = json.loads(path.read_text()) if path.exists() else {}
    runs = list(itertools.product(DENSE_FEATURES, SEEDS, ORDERS))
    for name, seed, order in track(runs, "training"):
        key = f"{name}, seed {seed}, {order}"
        if key not in results:
            results[key] = accuracy(name, seed, ORDERS[order], steps)
            path.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    print(accuracy_table(results))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("accuracy", "simulate"))
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--results", type=Path, default=HERE / "results.json")
    asked = parser.parse_args()
    if asked.what == "simulate":
        simulate()
    else:
        train(asked.steps, asked.results)


if __name__ == "__main__":
    main()
