"""Training with and without hot batches; see README.md beside this.

    python experiments/hot_batches/run.py accuracy
    python experiments/hot_batches/run.py time

Writes results.json after every run, goes on where it was interrupted, and prints the
tables of the README.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import workloads
from rich.progress import track

from embark_jax.data import WINDOW_BATCHES, Batch
from embark_jax.train.trainer import Trainer

RESULTS = Path(__file__).with_name("results.json")
SEEDS = range(5)
ORDERS = {"own order": False, "sorted": True}
MESHES = {"accuracy": (1, 2), "time": (2, 4)}
"""Nodes and devices of each; the mesh does not change what is learned."""
KINDS = ("own order", "all-hot", "mixed")
"""Of batches whose steps are timed."""
REPEATS = 9
"""Of the timing; one before them compiles, and is left out."""


def accuracy(name: str, seed: int, hot_batches: bool) -> dict[str, Any]:
    """The test metrics after a run, and what share of its batches was all-hot."""
    changes = [f"seed={seed}"]
    if workloads.WORKLOADS[name].config().data.kind == "synthetic":
        changes.append(f"data.seed={seed}")
    setup = workloads.prepare(
        workloads.WORKLOADS[name],
        MESHES["accuracy"],
        f"train.hot_batches={str(hot_batches).lower()}",
        *changes,
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


def step_times(name: str) -> dict[str, Any]:
    """Wall ms of single steps: of a batch of samples in their own order, of an all-hot
    one and of a mixed one, in turn, so that what else the machine does meets all."""
    setups = {
        sort: workloads.prepare(
            workloads.WORKLOADS[name],
            MESHES["time"],
            f"train.hot_batches={str(sort).lower()}",
        )
        for sort in (False, True)
    }
    size = setups[True].config.train.batch_size
    own, ordered = (
        [setup.training_data.train_batch(step, size) for step in range(WINDOW_BATCHES)]
        for setup in setups.values()
    )
    hot = [batch for batch in ordered if batch.hot]
    mixed = [batch for batch in ordered if not batch.hot]
    trainers = {sort: setup.trainer() for sort, setup in setups.items()}
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for repeat in range(REPEATS + 1):
        for batches in zip(own, hot, mixed):  # noqa: B905
            for kind, batch in zip(KINDS, batches, strict=True):
                ms = timed(trainers[kind != "own order"], [batch])
                if repeat:
                    found[kind].append(ms)
    return {
        "ms": found,
        "all_hot": len(hot) / WINDOW_BATCHES,
        "capacities": {
            order: dict(trainers[sort].embeddings.plan.capacities)
            for order, sort in ORDERS.items()
        },
    }


def timed(trainer: Trainer, batches: Iterable[Batch]) -> float:
    """Wall ms a step."""
    begin, before = time.perf_counter(), trainer.step
    trainer.train(batches)
    return 1e3 * (time.perf_counter() - begin) / (trainer.step - before)


def accuracy_table(results: dict[str, Any]) -> str:
    """Mean and standard deviation over seeds, and the mean of the differences."""
    lines = [
        "| workload | all-hot batches | metric | own order | sorted | difference, "
        "mean ± its standard error |",
        "|---" * 6 + "|",
    ]
    for name in workloads.WORKLOADS:
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


def time_table(results: dict[str, Any]) -> str:
    """Median ms a step, and how much longer one of sorted batches is than the one of
    own order beside it: median and quartiles."""
    lines = [
        f"| workload | all-hot batches | {' | '.join(KINDS)} | sorted | "
        "sorted over own order |",
        "|---" * 7 + "|",
    ]
    for name in workloads.WORKLOADS:
        found = results.get(f"{name}, time")
        if found:
            own, hot, mixed = (np.array(found["ms"][kind]) for kind in KINDS)
            ordered = found["all_hot"] * hot + (1 - found["all_hot"]) * mixed
            cells = [f"{np.median(ms):.1f}" for ms in (own, hot, mixed, ordered)]
            low, middle, high = np.quantile(ordered / own, [0.25, 0.5, 0.75])
            lines.append(
                f"| {name} | {found['all_hot']:.0%} | {' | '.join(cells)} | "
                f"{middle:.2f} ({low:.2f}–{high:.2f}) |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("accuracy", "time"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    nodes, gpus = MESHES[asked.what]
    jax.config.update("jax_num_cpu_devices", nodes * gpus)
    cache = tempfile.TemporaryDirectory()  # seeds share compiled programs
    jax.config.update("jax_compilation_cache_dir", cache.name)
    results = json.loads(asked.results.read_text()) if asked.results.exists() else {}

    def keep(key: str, record: dict[str, Any]) -> None:
        results[key] = record
        asked.results.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")

    if asked.what == "time":
        for name in track(workloads.WORKLOADS, "timing"):
            keep(f"{name}, time", step_times(name))
        print(time_table(results))
        return
    runs = list(itertools.product(workloads.WORKLOADS, SEEDS, ORDERS))
    for name, seed, order in track(runs, "training"):
        key = f"{name}, seed {seed}, {order}"
        if key not in results:
            keep(key, accuracy(name, seed, ORDERS[order]))
    print(accuracy_table(results))


if __name__ == "__main__":
    main()
