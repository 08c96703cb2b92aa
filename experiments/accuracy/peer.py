"""Trains the models of FuxiCTR's model zoo by the recipe, with FuxiCTR's own loop.

It needs FuxiCTR and PyTorch, in an environment of their own, a copy of the FuxiCTR
repository for its model zoo, and the samples that ``ours.py --arrays`` wrote. A run
that is in results.json already is not repeated.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from collections import OrderedDict
from pathlib import Path

import numpy as np
import recipe
import torch
from fuxictr.features import FeatureMap
from fuxictr.pytorch.torch_utils import seed_everything

HIDDEN = list(recipe.HIDDEN)
MODELS = {
    "dcnv2": (
        "DCNv2",
        "model_zoo.DCNv2.src.DCNv2",
        {
            "model_structure": "stacked",
            "stacked_dnn_hidden_units": HIDDEN,
            "num_cross_layers": 3,
            "net_dropout": recipe.DROPOUT,
        },
    ),
    "deepfm": (
        "DeepFM",
        "model_zoo.DeepFM.DeepFM_torch.src.DeepFM",
        {"hidden_units": HIDDEN, "net_dropout": recipe.DROPOUT},
    ),
    "dlrm": (
        "DLRM",
        "model_zoo.DLRM.src.DLRM",
        {
            "bottom_mlp_units": [64],
            "top_mlp_units": HIDDEN,
            "bottom_mlp_dropout": recipe.DROPOUT,
            "top_mlp_dropout": recipe.DROPOUT,
        },
    ),
    "autoint": (
        "AutoInt",
        "model_zoo.AutoInt.src.AutoInt",
        {
            "dnn_hidden_units": HIDDEN,
            "attention_layers": 2,
            "attention_dim": 32,
            "num_heads": 2,
            "net_dropout": recipe.DROPOUT,
        },
    ),
    "finalmlp": (
        "FinalMLP",
        "model_zoo.FinalMLP.src.FinalMLP",
        {
            "mlp1_hidden_units": HIDDEN,
            "mlp2_hidden_units": HIDDEN,
            "mlp1_dropout": recipe.DROPOUT,
            "mlp2_dropout": recipe.DROPOUT,
            "use_fs": False,
            "num_heads": 2,
        },
    ),
    "din": (
        "DIN",
        "model_zoo.DIN.src.DIN",
        {
            "attention_hidden_units": [40],
            "dnn_hidden_units": HIDDEN,
            "dnn_activations": "Dice",
            "din_target_field": ["item_id"],
            "din_sequence_field": ["past_item_id"],
            "net_dropout": recipe.DROPOUT,
        },
    ),
}
POOLED = "layers.MaskedAveragePooling()"


class Samples:
    """Batches of a split, as FuxiCTR's loop takes them: faster than its own loader, as
    all samples are in memory already.

    Args:
      columns: the columns of all samples.
      shuffled: whether each pass has an order of its own, and leaves out the last,
        shorter batch.
    """

    def __init__(self, columns: dict[str, torch.Tensor], shuffled: bool):
        self.columns, self.shuffled = columns, shuffled
        self.size = len(columns["label"])

    def __len__(self) -> int:
        if self.shuffled:
            return self.size // recipe.BATCH
        return -(-self.size // recipe.BATCH)

    def __iter__(self):
        order = torch.randperm(self.size) if self.shuffled else torch.arange(self.size)
        for i in range(len(self)):
            chosen = order[i * recipe.BATCH : (i + 1) * recipe.BATCH]
            yield {name: column[chosen] for name, column in self.columns.items()}


def read(with_history: bool) -> dict[str, dict[str, torch.Tensor]]:
    splits: dict[str, dict[str, torch.Tensor]] = {}
    with np.load(recipe.ARRAYS) as arrays:
        for key in arrays.files:
            split, name = key.split("/")
            if name != "past_item_id" or with_history:
                values = torch.from_numpy(arrays[key])
                if name.startswith("number"):
                    values = values[:, None]
                splits.setdefault(split, {})[name] = values
    return splits


def feature_map(splits: dict[str, dict[str, torch.Tensor]]) -> FeatureMap:
    found = FeatureMap("movielens_100k", ".")
    found.labels, found.default_emb_dim = ["label"], recipe.DIM
    features = OrderedDict()
    for name, column in splits["train"].items():
        if name == "label":
            continue
        if name.startswith("number"):
            features[name] = {"source": "", "type": "numeric"}
            continue
        rows = 1 + max(int(each[name].max()) for each in splits.values())
        spec = {"source": "", "type": "categorical", "vocab_size": rows}
        if column.ndim == 2:
            spec |= {"type": "sequence", "max_len": column.shape[1]}
            spec["feature_encoder"] = POOLED
        if name == "past_item_id":
            spec |= {"share_embedding": "item_id", "feature_encoder": None}
        features[name] = spec | {"padding_idx": 0}
    found.features = features
    found.num_fields = found.get_num_fields()
    found.set_column_index()
    return found


def train(model: str, seed: int, epochs: int) -> dict[str, float]:
    kind, module, options = MODELS[model]
    seed_everything(seed)
    splits = read(model == "din")
    with tempfile.TemporaryDirectory() as folder:
        built = getattr(importlib.import_module(module), kind)(
            feature_map(splits),
            model_id=model,
            model_root=folder,
            verbose=0,
            metrics=["AUC", "logloss"],
            optimizer="adam",
            loss="binary_crossentropy",
            learning_rate=recipe.RATE,
            embedding_dim=recipe.DIM,
            monitor="AUC",
            early_stop_patience=recipe.PATIENCE,
            **options,
        )
        Path(built.model_dir).mkdir(parents=True)
        steps = [0.0, 0]
        one_step = built.train_step

        def timed(batch):
            start = time.perf_counter()
            loss = one_step(batch)
            steps[0] += time.perf_counter() - start
            steps[1] += 1
            return loss

        built.train_step = timed
        best = {}

        def following(logs, min_delta=1e-6, follow=built.checkpoint_and_earlystop):
            follow(logs, min_delta)
            if not built._stopping_steps:
                best["epoch"] = built._epoch_index + 1

        built.checkpoint_and_earlystop = following
        built.fit(
            Samples(splits["train"], shuffled=True),
            epochs=epochs,
            validation_data=Samples(splits["validation"], shuffled=False),
            max_gradient_norm=recipe.CLIP_NORM,
        )
        found = built.evaluate(Samples(splits["test"], shuffled=False))
    return {
        "auc": float(found["AUC"]),
        "log_loss": float(found["logloss"]),
        "epochs": best["epoch"],
        "samples_per_s": steps[1] * recipe.BATCH / steps[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fuxictr", required=True, help="Folder of the repository.")
    parser.add_argument("--models", nargs="+", default=recipe.MODELS)
    parser.add_argument("--seeds", nargs="+", type=int, default=recipe.SEEDS)
    parser.add_argument("--speed", action="store_true", help="a few epochs, only timed")
    asked = parser.parse_args()
    sys.path.insert(0, asked.fuxictr)
    torch.set_num_threads(2)
    path = recipe.SPEED if asked.speed else recipe.RESULTS
    epochs = recipe.SPEED_EPOCHS if asked.speed else recipe.EPOCHS
    for model in asked.models:
        for seed in asked.seeds:
            name = f"fuxictr/{model}/{seed}"
            if name not in recipe.results(path):
                recipe.keep(name, record := train(model, seed, epochs), path)
                print(name, record, flush=True)


if __name__ == "__main__":
    main()
