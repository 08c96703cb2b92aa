"""Trains the models of embark_jax by the recipe; or writes the samples for the peer.

A run that is in results.json already is not repeated.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import recipe
from rich.console import Console

from embark_jax.config import ExperimentConfig
from embark_jax.data import PreparedData
from embark_jax.run import training
from embark_jax.run.logs import read_metrics

HIDDEN = list(recipe.HIDDEN)
DATA = "data/movielens_100k", "data/movielens_100k_history"
"""What the commands of the page prepare: without histories, and with them."""
MODELS: dict[str, dict[str, Any]] = {
    "dcnv2": {
        "kind": "dlrm_dcnv2",
        "bottom": [recipe.DIM],
        "top": [*HIDDEN, 1],
        "cross_layers": 3,
        "cross_rank": 80,
    },
    "deepfm": {"kind": "deepfm", "deep": HIDDEN},
    "dlrm": {"kind": "dlrm", "bottom": [64, recipe.DIM], "top": [*HIDDEN, 1]},
    "autoint": {"kind": "autoint", "attention": [32, 32], "heads": 2, "deep": HIDDEN},
    "finalmlp": {"kind": "finalmlp", "stream1": HIDDEN, "stream2": HIDDEN, "heads": 2},
    "din": {
        "kind": "din",
        "history": {"past_item_id": "item_id"},
        "activation": [40],
        "deep": HIDDEN,
    },
}


def config(
    model: str,
    seed: int,
    tables: list[str],
    epochs: int,
) -> ExperimentConfig:
    """The recipe."""
    scale = recipe.INITIAL_DEVIATION * 3**0.5  # uniform of this deviation
    no_gain = {"metric": "auc", "min_change": 1e-6}
    return ExperimentConfig.model_validate(
        {
            "name": model,
            "seed": seed,
            "data": {"kind": "prepared", "path": DATA[model == "din"]},
            "model": MODELS[model]
            | {"dropout": recipe.DROPOUT, "compute_dtype": "float32"},
            "embedding": {
                # DeepFM's first column holds the first-order weights.
                "dim": recipe.DIM + (model == "deepfm"),
                "tables": {name: {"init_scale": scale} for name in tables},
                "optimizer": {"kind": "adam", "learning_rate": recipe.RATE},
            },
            "dense_optimizer": {
                "kind": "adam",
                "learning_rate": recipe.RATE,
                "clip_norm": recipe.CLIP_NORM,
            },
            "train": {
                "batch_size": recipe.BATCH,
                "steps": epochs * recipe.STEPS_AN_EPOCH,
                "log_every": recipe.STEPS_AN_EPOCH // 2,
                "eval_every": recipe.STEPS_AN_EPOCH,
                "early_stopping": no_gain | {"patience": recipe.PATIENCE},
                "plateau": no_gain | {"patience": 1, "factor": recipe.RATE_FACTOR},
            },
        }
    )


def train(settings: ExperimentConfig) -> dict[str, float]:
    """Trains a run; test metrics of its best epoch, and its throughput."""
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder) / "run"
        final = training.train(settings, workdir, False, Console(quiet=True))
        assert final is not None
        speeds = [
            record["samples_per_s"]
            for record in read_metrics(workdir)
            if record.get("samples_per_s")
        ]
    return {
        "auc": final["test_auc"],
        "log_loss": final["test_log_loss"],
        "epochs": final["best_step"] / recipe.STEPS_AN_EPOCH,
        "samples_per_s": float(np.median(speeds)),
    }


def write_arrays(data: PreparedData) -> None:
    """Writes all samples of all splits, ids counted from 1, with 0 for padding."""
    train = data.train_batch(0, data.train_samples)
    (validation,) = data.validation_batches(10**6)
    (test,) = data.test_batches(10**6)
    arrays = {}
    for split, batch in (("train", train), ("validation", validation), ("test", test)):
        arrays[f"{split}/label"] = batch.labels
        for i in range(data.dense_features):
            arrays[f"{split}/number{i}"] = batch.dense[:, i]
        for name, ids in batch.ids.items():
            arrays[f"{split}/{name}"] = ids[:, 0] + 1 if ids.shape[1] == 1 else ids + 1
    np.savez(recipe.ARRAYS, **arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arrays", action="store_true")
    parser.add_argument("--models", nargs="+", default=recipe.MODELS)
    parser.add_argument("--seeds", nargs="+", type=int, default=recipe.SEEDS)
    parser.add_argument("--speed", action="store_true", help="a few epochs, only timed")
    asked = parser.parse_args()
    data = PreparedData(DATA[True])
    # Seeds share the compiled programs of their model.
    jax.config.update("jax_compilation_cache_dir", str(Path(".cache").absolute()))
    if asked.arrays:
        write_arrays(data)
        return
    path = recipe.SPEED if asked.speed else recipe.RESULTS
    epochs = recipe.SPEED_EPOCHS if asked.speed else recipe.EPOCHS
    for model in asked.models:
        for seed in asked.seeds:
            name = f"embark_jax/{model}/{seed}"
            if name not in recipe.results(path):
                tables = list(data.table_rows)
                record = train(config(model, seed, tables, epochs))
                recipe.keep(name, record, path)
                print(name, record, flush=True)


if __name__ == "__main__":
    main()
