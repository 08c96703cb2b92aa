"""Accuracy of every model on MovieLens-100k, each tuned with the same budget.

For each model ``embark search`` tries settings with seed 0 and keeps the one with the
best validation AUC; then the best setting is trained with other seeds. The test samples
are looked at, but decide nothing. What is in results.json already is not repeated.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CONFIGS = HERE.parents[1] / "configs"
MODELS = ("dlrm", "dcn", "wide_deep", "deepfm", "autoint", "finalmlp", "tbsm", "din")
RESULTS = HERE / "results.json"
TRIALS, SEEDS = 12, (1, 2, 3, 4, 5)
SEARCH = {
    "embedding.optimizer.learning_rate": "{low: 0.02, high: 0.3, log: true}",
    "dense_optimizer.learning_rate": "{low: 1e-3, high: 1e-2, log: true}",
    "dense_optimizer.weight_decay": "{low: 0.05, high: 2.0, log: true}",
    "model.dropout": "{choose: [0.0, 0.2]}",
}
EPOCH = 156  # steps: 80,000 samples in batches of 512
RECIPE = (
    *(f"train.steps={10 * EPOCH}", f"train.eval_every={EPOCH}"),
    "train.early_stopping={metric: auc, patience: 2}",
)
KEPT = ("validation_auc", "test_auc", "test_log_loss", "samples_per_s")


def config_of(model: str) -> Path:
    if model == "dlrm_dcnv2":
        return CONFIGS / "movielens_100k.yaml"
    return CONFIGS / "experiments" / "movielens_100k" / f"{model}.yaml"


def embark(*args) -> None:
    subprocess.run(["embark", *map(str, args)], check=True, stdout=sys.stderr)


def search(model: str, folder: Path) -> dict[str, float]:
    """The values of the best trial."""
    searched = (f"search.{key}={values}" for key, values in SEARCH.items())
    budget = ("--trials", TRIALS, "--workdir", folder)
    embark("search", config_of(model), *RECIPE, *searched, *budget)
    with (folder / "results.csv").open(newline="") as file:
        trials = list(csv.DictReader(file))
    best = max(trials, key=lambda row: float(row["validation_auc"] or 0))
    return {key: float(best[key]) for key in SEARCH}


def train(model: str, values: dict[str, float], seed: int, folder: Path) -> dict:
    changes = (f"{key}={value}" for key, value in values.items())
    embark(
        "train",
        config_of(model),
        *RECIPE,
        *changes,
        f"seed={seed}",
        "--workdir",
        folder,
    )
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    record = lines[-1]
    record["validation_auc"] = max(line.get("validation_auc", 0) for line in lines)
    speeds = sorted(
        line["samples_per_s"] for line in lines if line.get("samples_per_s")
    )
    record["samples_per_s"] = speeds[len(speeds) // 2]
    return {key: record[key] for key in KEPT} | {"steps": record["best_step"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    every = ("dlrm_dcnv2", *MODELS)
    parser.add_argument("--models", nargs="+", choices=every, default=every)
    asked = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}

    def keep() -> None:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")

    for model in asked.models:
        with tempfile.TemporaryDirectory() as folder:
            if model not in results:
                values = search(model, Path(folder, "search"))
                results[model] = {"values": values, "seeds": {}}
                keep()
            found = results[model]
            for seed in SEEDS:
                if str(seed) not in found["seeds"]:
                    record = train(
                        model, found["values"], seed, Path(folder, str(seed))
                    )
                    found["seeds"][str(seed)] = record
                    keep()


if __name__ == "__main__":
    main()
