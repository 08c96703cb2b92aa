"""Tunes every model on MovieLens-100k by the same search, then tests the best recipe.

`embark search` runs as many trials for each model over the same values. The validation
samples choose the recipe and, in each run, the best epoch. Interrupted, it goes on
where it was; what is in tuned.json already is not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from run import MODELS

from embark_jax import config_io, run
from embark_jax.search import BEST, run_search

RESULTS = Path(__file__).parent / "tuned.json"
TRIALS = 8
SEEDS = (0, 1, 2)
EPOCH = 156
"""Steps of an epoch."""
SEARCH = {
    "embedding.optimizer.learning_rate": {"low": 0.02, "high": 0.2, "log": True},
    "dense_optimizer.learning_rate": {"low": 1e-3, "high": 2e-2, "log": True},
    "dense_optimizer.weight_decay": {"choose": [0.0, 0.1, 0.3, 1.0]},
    "model.dropout": {"choose": [0.0, 0.2, 0.4]},
}
RECIPE = {
    "train.steps": 20 * EPOCH,
    "train.eval_every": EPOCH,
    "train.log_every": EPOCH,
    "train.early_stopping": {"metric": "auc", "patience": 2},
    "train.plateau": {"metric": "auc", "factor": 0.1},
}
"""Up to 20 epochs; after one without a better validation AUC rates fall to a tenth,
after two training ends."""


def search(model: str, workdir: Path, console: Console) -> dict[str, Any] | None:
    """Returns the values of the best trial, and its validation AUC; None if it was
    ended early."""
    given = RECIPE | {"search": SEARCH}
    overrides = [f"{key}={json.dumps(value)}" for key, value in given.items()]
    options = TRIALS, "auc", "tpe", workdir.exists()
    trials = run_search(MODELS[model], overrides, workdir, *options, console)
    if len(trials) < TRIALS:
        return None
    best = max(trials, key=lambda trial: trial.get("validation_auc", 0.0))
    return {key: best[key] for key in ("validation_auc", *SEARCH)}


def test(recipe: Path, seed: int, console: Console) -> dict[str, float] | None:
    """Trains the recipe; metrics of the best epoch. None if it was ended early."""
    config = config_io.load(recipe, [f"seed={seed}"])
    with tempfile.TemporaryDirectory() as folder:
        final = run.train(config, Path(folder) / "run", False, console)
    if final is None:
        return None
    record = {key: final[f"test_{key}"] for key in ("auc", "log_loss")}
    return record | {"epoch": final["best_step"] / EPOCH}


def table(results: dict[str, Any]) -> None:
    """Prints the table of README.md, the best model first."""
    rows = []
    for model in MODELS:
        tested = [results.get(f"{model}/{seed}") for seed in SEEDS]
        if None in tested:
            continue
        columns = {k: [each[k] for each in tested if each] for k in ("auc", "log_loss")}
        shown = [
            f"{statistics.mean(values):.4f} ({max(values) - min(values):.4f})"
            for values in columns.values()
        ]
        chosen = [format(results[model][key], ".2g") for key in SEARCH]
        validation = f"{results[model]['validation_auc']:.4f}"
        line = " | ".join([model, *chosen, validation, *shown])
        rows.append((statistics.mean(columns["auc"]), f"| {line} |"))
    print("\n".join(line for _, line in sorted(rows, reverse=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--workdir", type=Path, default=Path("runs/tuned"))
    parser.add_argument("--table", action="store_true", help="only print the table")
    asked = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if asked.table:
        table(results)
        return
    jax.config.update("jax_compilation_cache_dir", str(Path(".cache").absolute()))
    console = Console(quiet=True)

    def keep(name: str, record: dict[str, Any]) -> None:
        results[name] = record
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        print(name, record, flush=True)

    for model in asked.models:
        workdir = asked.workdir / model
        if model not in results:
            if (found := search(model, workdir, console)) is None:
                return
            keep(model, found)
        for seed in SEEDS:
            if f"{model}/{seed}" not in results:
                if (record := test(workdir / BEST, seed, console)) is None:
                    return
                keep(f"{model}/{seed}", record)


if __name__ == "__main__":
    main()
