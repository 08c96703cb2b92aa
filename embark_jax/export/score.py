"""Scores samples with an exported model, in NumPy alone.

    python score.py samples.npz

prints a logit for each sample. The file holds, as ``numpy.savez`` writes them, "dense"
``[samples, dense_features]``, for each feature "ids/FEATURE" ``[samples, hotness]``
integers (-1 where a bag is shorter) and, if it is weighted, "weights/FEATURE" likewise.
Everything is computed in float32, whatever the model's ``compute_dtype``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Arrays of a file, mapped into memory: rows that are not used are not read.

    The format: https://github.com/huggingface/safetensors#format.
    """
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_bytes))
    header.pop("__metadata__", None)
    types = {"F32": np.float32}
    return {
        name: np.memmap(
            path,
            types[entry["dtype"]],
            mode="r",
            offset=8 + header_bytes + entry["data_offsets"][0],
            shape=tuple(entry["shape"]),
        )
        for name, entry in header.items()
    }


class Model:
    """An exported model.

    Args:
      folder: as ``embark export`` wrote it.
    """

    def __init__(self, folder: str | Path):
        folder = Path(folder)
        self.description = json.loads((folder / "model.json").read_text("utf-8"))
        self.params = read_safetensors(folder / self.description["dense"])
        self.tables = {
            name: read_safetensors(folder / table["file"])[name]
            for name, table in self.description["tables"].items()
        }
        kind = self.description["model"]["kind"]
        if kind not in MODELS:
            raise ValueError(
                f"model {kind!r} is not among {', '.join(MODELS)}: write its forward "
                "pass here, or use scoring.jax with jax.export"
            )
        self._forward = MODELS[kind]

    def logits(self, dense, ids, weights=None) -> np.ndarray:
        """``[samples]`` log odds; arguments as in the file of samples."""
        embeddings = {
            name: self._embed(name, feature, ids[name], (weights or {}).get(name))
            for name, feature in sorted(self.description["features"].items())
        }
        return self._forward(self.params, np.asarray(dense, np.float32), embeddings)

    def _embed(self, name, feature, ids, weights) -> np.ndarray:
        """A feature's rows, pooled: ``[samples, dim]``, or with "none" the sequence."""
        table = self.tables[feature["table"]]
        if ids.min(initial=0) < -1 or ids.max(initial=0) >= len(table):
            raise ValueError(
                f"feature {name!r}: ids must be -1 (padding) to {len(table) - 1}"
            )
        factors = (ids >= 0).astype(np.float32)
        if feature["weighted"]:
            factors = factors * weights
        if feature["pooling"] == "mean":
            total = factors.sum(axis=1, keepdims=True)
            factors = np.divide(
                factors, total, np.zeros_like(factors), where=total != 0
            )
        rows = table[np.maximum(ids, 0)]
        if feature["pooling"] == "none":
            return rows * factors[:, :, None]
        return np.einsum("bhd,bh->bd", rows, factors)


def linear(params, path, x) -> np.ndarray:
    return x @ params[f"{path}.w"] + params[f"{path}.b"]


def mlp(params, path, x, last_relu=False) -> np.ndarray:
    """Linear layers with ReLU between them; no layers give the identity."""
    layers = sum(name.startswith(f"{path}.layers.") for name in params) // 2
    for i in range(layers):
        x = linear(params, f"{path}.layers.{i}", x)
        if last_relu or i + 1 < layers:
            x = np.maximum(x, 0)
    return x


def dlrm(params, dense, embeddings) -> np.ndarray:
    """Dot products of all pairs, beside the bottom MLP's output."""
    bottom = mlp(params, "bottom", dense, last_relu=True)
    vectors = np.stack([bottom, *embeddings.values()], axis=1)
    gram = vectors @ vectors.transpose(0, 2, 1)
    i, j = np.tril_indices(vectors.shape[1], -1)
    return mlp(params, "top", np.concatenate([bottom, gram[:, i, j]], axis=1))[:, 0]


def dlrm_dcnv2(params, dense, embeddings) -> np.ndarray:
    """Low-rank cross layers over everything side by side."""
    bottom = mlp(params, "bottom", dense, last_relu=True)
    x0 = x = np.concatenate([bottom, *embeddings.values()], axis=1)
    layer = 0
    while f"cross.{layer}.w" in params:
        v, w, b = (params[f"cross.{layer}.{name}"] for name in "vwb")
        x = x0 * (x @ v @ w + b) + x
        layer += 1
    return mlp(params, "top", x)[:, 0]


MODELS = {"dlrm": dlrm, "dlrm_dcnv2": dlrm_dcnv2}


def main() -> None:
    with np.load(sys.argv[1]) as samples:
        given: dict[str, dict[str, np.ndarray]] = {"ids": {}, "weights": {}}
        for key in samples.files:
            group, _, feature = key.partition("/")
            if feature:
                given[group][feature] = samples[key]
        logits = Model(Path(__file__).parent).logits(samples["dense"], **given)
    np.savetxt(sys.stdout, logits, fmt="%.9g")


if __name__ == "__main__":
    main()
