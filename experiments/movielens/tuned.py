"""Tunes every model on MovieLens-100k by the same search, then tests the best recipe.

The same random recipes are tried for each model. The validation samples choose the
recipe and, in each run, the best epoch. Interrupted, it goes on where it was; what is
in tuned.json already is not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from run import MODELS
from run import RESULTS as SHIPPED

from embark_jax.config import reading
from embark_jax.run import training
from embark_jax.run.logs import read_metrics
from embark_jax.run.search import BEST, Search
from embark_jax.run.trials import run_trials

RESULTS = Path(__file__).parent / "tuned.json"
WORKDIR = Path("runs/tuned")
TRIALS = 12
SEEDS = (0, 1, 2)
EPOCH = 156
"""Steps of an epoch."""
SEARCH = {
    "embedding.optimizer.learning_rate": {"low": 0.04, "high": 0.16, "log": True},
    "dense_optimizer.learning_rate": {"low": 2e-3, "high": 1e-2, "log": True},
    "dense_optimizer.weight_decay": {"choose": [0.1, 0.3, 1.0]},
    "model.dropout": {"choose": [0.0, 0.2, 0.4]},
    "embedding.optimizer.schedule.kind": {"choose": ["constant", "cosine"]},
    "dense_optimizer.schedule.kind": {"choose": ["constant", "cosine"]},
    "train.steps": {"choose": [4 * EPOCH, 8 * EPOCH]},
}
RECIPE = {
    "train.eval_every": EPOCH,
    "train.log_every": EPOCH,
    "train.early_stopping": {"metric": "auc", "patience": 3},
}
METRICS = "validation_auc", "test_auc", "test_log_loss"


def search(model: str, console: Console) -> dict[str, Any] | None:
    """Returns the values of the best trial; None if the search was ended early."""
    given = RECIPE | {"search": SEARCH}
    overrides = [f"{key}={json.dumps(value)}" for key, value in given.items()]
    workdir = WORKDIR / model
    study = Search(MODELS[model], overrides, TRIALS, "auc", "random", console)
    trials = run_trials(study, workdir, workdir.exists(), console)
    if len(trials) < TRIALS:
        return None
    best = max(trials, key=lambda trial: trial.get("validation_auc", 0.0))
    return {key: best[key] for key in SEARCH}


def test(model: str, seed: int, console: Console) -> dict[str, float] | None:
    """Trains the best recipe; metrics of its best epoch. None if it was ended early."""
    workdir = WORKDIR / model
    config = reading.load(workdir / BEST, [f"seed={seed}"])
    final = training.train(config, workdir / f"seed-{seed}", True, console)
    if final is None:
        return None
    best = final["best_step"]
    validation = next(
        record["validation_auc"]
        for record in read_metrics(workdir / f"seed-{seed}")
        if record["step"] == best and "validation_auc" in record
    )
    return {"validation_auc": validation} | {key: final[key] for key in METRICS[1:]}


def table(results: dict[str, Any]) -> None:
    """Prints the table of README.md, the best model first."""
    shipped = json.loads(SHIPPED.read_text())
    rows = []
    for model in MODELS:
        tested = [results.get(f"{model}/{seed}") for seed in SEEDS]
        if None in tested:
            continue
        before = spread(shipped[f"{model}/1x1/{seed}"]["test_auc"] for seed in SEEDS)
        measured = [spread(each[key] for each in tested if each) for key in METRICS]
        recipe = results[model] | {"train.steps": results[model]["train.steps"] / EPOCH}
        chosen = [
            value if isinstance(value, str) else f"{value:.2g}"
            for value in (recipe[key] for key in SEARCH)
        ]
        line = " | ".join([model, *chosen, *measured, before])
        rows.append((measured[1], f"| {line} |"))
    print("\n".join(line for _, line in sorted(rows, reverse=True)))


def spread(values: Iterable[float]) -> str:
    """Returns the mean and, in brackets, the largest minus the smallest value."""
    found = list(values)
    return f"{statistics.mean(found):.4f} ({max(found) - min(found):.4f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="only print the table")
    asked = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if asked.table:
        table(results)
        return
    jax.config.update("jax_compilation_cache_dir", str((WORKDIR / ".cache").absolute()))
    console = Console(quiet=True)
    jobs = [(model, seed) for model in MODELS for seed in (None, *SEEDS)]
    for model, seed in jobs:
        name = model if seed is None else f"{model}/{seed}"
        if name in results:
            continue
        found = search(model, console) if seed is None else test(model, seed, console)
        if found is None:
            return
        results[name] = found
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        print(name, found, flush=True)


if __name__ == "__main__":
    main()
