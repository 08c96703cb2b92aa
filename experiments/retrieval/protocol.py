"""What both frameworks share: where results lie, the models and their trials. Imports
nothing of either."""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results.json"
SEEDS = (0, 1, 2)
K = 10
DIM = 64
"""Length of users' and items' vectors in every model."""
MOST_EPOCHS = 100
PATIENCE = 10
"""Epochs without a better validation Recall@10 after which training ends."""
TRIALS = {
    "two_tower": [
        {"rate": rate, "temperature": temperature}
        for rate in (0.001, 0.003)
        for temperature in (0.1, 0.2)
    ],
    "popular": [{}],
    "ItemKNN": [{"k": k} for k in (20, 50, 100, 200)],
    "EASE": [{"reg_weight": weight} for weight in (50.0, 100.0, 250.0, 500.0)],
    "BPR": [{"learning_rate": rate} for rate in (5e-4, 1e-3)],
}
"""Settings that each model is tried with, on seed 0; the validation set chooses."""
DETERMINISTIC = ("popular", "ItemKNN", "EASE")
SPLITS = ("train", "validation", "test")
SAMPLES = Path("liked")
"""Folder of the split, which ``ours.py --samples`` writes for the peer."""


def results() -> dict:
    """All results so far, by ``model/trial/seed``."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def keep(name: str, record: dict[str, float]) -> None:
    """Adds a result to the file."""
    found = results() | {name: record}
    RESULTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def chosen(model: str) -> int | None:
    """Returns the number of the trial with the best validation Recall@10 of seed 0;
    None while some are missing."""
    found = results()
    names = [f"{model}/{trial}/0" for trial in range(len(TRIALS[model]))]
    if any(name not in found for name in names):
        return None
    return max(range(len(names)), key=lambda i: found[names[i]]["validation"])


def due(model: str) -> list[tuple[int, int]]:
    """Returns the trials and seeds of a model that are still to be run, all trials of
    seed 0 before the others."""
    runs = [(trial, 0) for trial in range(len(TRIALS[model]))]
    if (best := chosen(model)) is not None and model not in DETERMINISTIC:
        runs += [(best, seed) for seed in SEEDS]
    found = results()
    missing = [run for run in runs if f"{model}/{run[0]}/{run[1]}" not in found]
    return list(dict.fromkeys(missing))
