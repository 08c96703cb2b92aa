"""Accuracy on MovieLens-100k: every model, on one device and on a 2 × 4 mesh.

A run that is in results.json already is not repeated, so that an interrupted study
goes on where it was. The test samples are looked at once, after the last step.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

import jax
import linear
from rich.progress import track

from embark_jax.config import reading
from embark_jax.data import MovieLens100K
from embark_jax.run import experiment

CONFIGS = Path(__file__).parents[2] / "configs"
MODELS = {
    "dlrm_dcnv2": CONFIGS / "movielens_100k.yaml",
    **{
        name: CONFIGS / "experiments" / "movielens_100k" / f"{name}.yaml"
        for name in (
            "dlrm",
            "dcn",
            "wide_deep",
            "deepfm",
            "autoint",
            "finalmlp",
            "tbsm",
            "din",
        )
    },
}
MESHES = {"1x1": (1, 1), "2x4": (2, 4)}
SEEDS = (0, 1, 2)
RESULTS = Path(__file__).parent / "results.json"


def train(path: Path, mesh: tuple[int, int], seed: int) -> dict[str, float]:
    """Trains to the end; AUC and log loss of the validation and the test samples."""
    nodes, gpus_per_node = mesh
    changes = f"mesh.nodes={nodes} mesh.gpus_per_node={gpus_per_node} seed={seed}"
    config = reading.load(path, changes.split())
    setup = experiment.build(config)
    trainer = setup.trainer()
    trainer.fit(setup.dataset, setup.steps)
    record = {}
    for split in ("validation", "test"):
        batches = getattr(setup.dataset, f"{split}_batches")(config.train.batch_size)
        metrics = dataclasses.asdict(trainer.evaluate(batches))
        record |= {f"{split}_{key}": metrics[key] for key in ("auc", "log_loss")}
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--meshes", nargs="+", choices=MESHES, default=list(MESHES))
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)

    results = json.loads(asked.results.read_text()) if asked.results.exists() else {}

    def keep(name: str, record: dict[str, float]) -> None:
        results[name] = record
        text = json.dumps(results, indent=1, sort_keys=True) + "\n"
        asked.results.write_text(text)

    if "logistic_regression" not in results:
        keep("logistic_regression", linear.fit(MovieLens100K()))
    runs = [
        (model, mesh, seed)
        for mesh in asked.meshes
        for model in asked.models
        for seed in SEEDS
        if f"{model}/{mesh}/{seed}" not in results
    ]
    for model, mesh, seed in track(runs, "training"):
        record = train(MODELS[model], MESHES[mesh], seed)
        keep(f"{model}/{mesh}/{seed}", record)


if __name__ == "__main__":
    main()
