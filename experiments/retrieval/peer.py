"""Trains RecBole's models on the same samples, with RecBole's own loop and metric.

It needs RecBole and PyTorch, in an environment of their own, and the samples that
``ours.py --samples`` wrote. A run that is in results.json already is not repeated.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import protocol
import torch
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.utils import get_model, get_trainer, init_logger, init_seed

# RecBole saves with pickle what PyTorch 2.6 and later by default refuse to load.
_load = torch.load
torch.load = lambda *args, **kwargs: _load(*args, **{"weights_only": False} | kwargs)

MODELS = ("ItemKNN", "EASE", "BPR")


def train(model: str, options: dict[str, Any], seed: int) -> dict[str, float]:
    """Trains a run; Recall@10 of its best epoch."""
    with tempfile.TemporaryDirectory() as folder:
        config = Config(
            model,
            "liked",
            config_dict={
                "data_path": ".",
                "benchmark_filename": list(protocol.SPLITS),
                "load_col": {"inter": ["user_id", "item_id"], "item": ["item_id"]},
                "checkpoint_dir": folder,
                "embedding_size": protocol.DIM,
                "epochs": protocol.MOST_EPOCHS,
                "stopping_step": protocol.PATIENCE,
                "topk": [protocol.K],
                "metrics": ["Recall"],
                "valid_metric": f"Recall@{protocol.K}",
                "metric_decimal_place": 6,
                "show_progress": False,
                "seed": seed,
                **options,
            },
        )
        init_seed(seed, reproducibility=True)
        init_logger(config)
        dataset = create_dataset(config)
        parts = data_preparation(config, dataset)
        built = get_model(model)(config, parts[0].dataset)
        trainer = get_trainer(config["MODEL_TYPE"], model)(config, built)
        _, validation = trainer.fit(*parts[:2], saved=True, show_progress=False)
        tested = trainer.evaluate(parts[2], load_best_model=True, show_progress=False)
    name = f"recall@{protocol.K}"
    return {"validation": float(validation[name]), "test": float(tested[name])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--runs", type=int, help="most runs of this call")
    asked = parser.parse_args()
    torch.set_num_threads(2)
    done = 0
    for model in asked.models:
        while (left := protocol.due(model)) and done != asked.runs:
            trial, seed = left[0]
            record = train(model, protocol.TRIALS[model][trial], seed)
            protocol.keep(name := f"{model}/{trial}/{seed}", record)
            print(name, record, flush=True)
            done += 1


if __name__ == "__main__":
    main()
