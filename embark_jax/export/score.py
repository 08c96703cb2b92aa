"""Scores samples with an exported model, in NumPy alone.

    python score.py samples.npz

prints a logit for each sample (and task). ``numpy.savez`` writes such a file, with
"dense" ``[samples, dense_features]``, for each feature "ids/FEATURE" ``[samples,
hotness]`` integers (-1 where a bag is shorter; keys, if the table is dynamic) and, if
it is weighted, "weights/FEATURE" likewise. All is computed in float32, whatever
``compute_dtype`` is.

If the export has ``encoding/``, that says which id a value of a raw row has:
``manifest.json`` lists the columns, features, missing values and transforms, and
``vocabulary/TABLE.arrow`` (Arrow IPC) the values of the ids from 2 on, in the column
``key``. Id 0 is a missing value, id 1 one that is not there; tables in the manifest's
``hashed_tables`` have no vocabulary. The how-to page on exports has the details.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from pathlib import Path

import numpy as np

from embark_jax.export.errors import ExportError
from embark_jax.export.lookup import apply_delta, embed, read_table
from embark_jax.export.reading import inside, read_description, read_safetensors


class Model:
    """An exported model.

    Args:
      folder: an export that ``embark export`` wrote.

    Raises:
      ExportError: if a file of it is missing or not as it was written.
    """

    def __init__(self, folder: str | Path):
        folder = Path(folder)
        self.description = read_description(folder)
        if "since" in self.description:
            raise ExportError(f"{folder}: has changes alone, to update a model with")
        self.params = read_safetensors(inside(folder, self.description["dense"]))
        self.tables = {
            name: read_table(folder, name, table)
            for name, table in self.description["tables"].items()
        }

    def update(self, folder: str | Path) -> None:
        """Takes over what has changed, from an export made with ``--since``.

        Raises:
          ExportError: if its changes do not begin at this model's step, or a file is
            not as it was written; nothing changes.
        """
        step = self.description["step"]
        changed = apply_delta(Path(folder), step, self.tables, self.params)
        self.params, step = changed
        self.description["step"] = step

    def logits(self, dense, ids, weights=None) -> np.ndarray:
        """Returns log odds, ``[samples]`` or ``[samples, tasks]``; arguments are the
        arrays of a samples file.

        Raises:
          ValueError: if arrays are missing, unknown, or not of their shape and type.
        """
        features, config = self.description["features"], self.description["model"]
        if config["kind"] not in MODELS:
            raise ValueError(
                f"model {config['kind']!r} cannot be scored in NumPy: use scoring.jax"
            )
        weighted = [name for name, each in features.items() if each["weighted"]]
        check_names("ids", ids, features)
        weights = weights or {}
        check_names("weights", weights, weighted)
        dense = checked("dense", dense, None, self.description["dense_features"], "fiu")
        embeddings = {}
        for name, feature in sorted(features.items()):
            shape = len(dense), feature["hotness"]
            bags = checked(f"ids/{name}", ids[name], *shape, "iu")
            factors = None
            if feature["weighted"]:
                factors = checked(f"weights/{name}", weights[name], *shape, "fiu")
            table = self.tables[feature["table"]]
            embeddings[name] = embed(name, table, feature["pooling"], bags, factors)
        dense = dense.astype(np.float32)
        return MODELS[config["kind"]](self.params, config, dense, embeddings)


def check_names(kind, given, known) -> None:
    """Raises ``ValueError`` unless exactly the known features are given."""
    missing, unknown = set(known) - set(given), set(given) - set(known)
    for problem, names in (("missing", missing), ("unknown to the model", unknown)):
        if names:
            raise ValueError(
                f"{kind} of features {', '.join(sorted(names))}: {problem}; needed "
                f"are {', '.join(sorted(known)) or 'none'}"
            )


def checked(what, array, samples, columns, kinds) -> np.ndarray:
    """Checks that an array is ``[samples, columns]``, of these kinds of NumPy dtypes.

    Raises:
      ValueError: if it is not.
    """
    array = np.asarray(array)
    rows = "samples" if samples is None else samples
    fits = array.ndim == 2 and array.shape[1] == columns
    if not fits or samples not in (None, len(array)):
        raise ValueError(
            f"{what}: shape is {list(array.shape)}, must be [{rows}, {columns}]"
        )
    if array.dtype.kind not in kinds:
        rule = "integers" if kinds == "iu" else "numbers"
        raise ValueError(f"{what}: dtype is {array.dtype}, must be {rule}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{what}: must be finite")
    return array


def linear(params, path, x) -> np.ndarray:
    return x @ params[f"{path}.w"] + params[f"{path}.b"]


def mlp(params, path, x, last_relu=False) -> np.ndarray:
    """Linear layers, with batch normalization if the model has it, and ReLU between
    them; no layers give the identity."""
    layers = sum(name.startswith(f"{path}.layers.") for name in params) // 2
    for i in range(layers):
        x = linear(params, f"{path}.layers.{i}", x)
        if last_relu or i + 1 < layers:
            x = np.maximum(normalized(params, f"{path}.norms.{i}", x), 0)
    return x


NORM_EPSILON = 1e-5
"""Added to variances, as in training."""


def normalized(params, path, x) -> np.ndarray:
    """Normalizes by the running statistics of training, if there are any."""
    if f"{path}.mean" not in params:
        return x
    mean, var, scale, bias = (
        params[f"{path}.{name}"] for name in ("mean", "var", "scale", "bias")
    )
    return (x - mean) / np.sqrt(var + NORM_EPSILON) * scale + bias


def pairs(vectors) -> np.ndarray:
    """Dot products of all pairs i > j of the vectors ``[…, n, dim]``."""
    gram = vectors @ np.swapaxes(vectors, -1, -2)
    i, j = np.tril_indices(vectors.shape[-2], -1)
    return gram[..., i, j]


def side_by_side(*arrays) -> np.ndarray:
    return np.concatenate(arrays, axis=-1)


def dlrm(params, config, dense, embeddings) -> np.ndarray:
    """The bottom MLP's output and the dot products of all pairs, into the top MLP."""
    bottom = mlp(params, "bottom", dense, last_relu=True)
    vectors = [bottom] if bottom.shape[1] else []  # none without dense features
    vectors = np.stack([*vectors, *embeddings.values()], axis=1)
    return mlp(params, "top", side_by_side(bottom, pairs(vectors)))[:, 0]


def dlrm_dcnv2(params, config, dense, embeddings) -> np.ndarray:
    """Low-rank cross layers over the concatenation of all inputs, before an MLP or
    beside it."""
    bottom = mlp(params, "bottom", dense, last_relu=True)
    x0 = x = side_by_side(bottom, *embeddings.values())
    for i in range(config["cross_layers"]):
        v, w, b = (params[f"cross.{i}.{name}"] for name in "vwb")
        x = x0 * (x @ v @ w + b) + x
    if config["structure"] == "stacked":
        return mlp(params, "top", x)[:, 0]
    deep = mlp(params, "top", x0, last_relu=True)
    return linear(params, "logit", side_by_side(x, deep))[:, 0]


def dcn(params, config, dense, embeddings) -> np.ndarray:
    """Cross layers with one weight vector each, in parallel with an MLP."""
    x0 = x = side_by_side(dense, *embeddings.values())
    for i in range(config["cross_layers"]):
        x = x0 * (x @ params[f"cross.{i}.w"]) + params[f"cross.{i}.b"] + x
    deep = mlp(params, "deep", x0, last_relu=True)
    return linear(params, "top", side_by_side(x, deep))[:, 0]


def first_order(params, path, dense, embeddings) -> np.ndarray:
    """A linear model; an id's weight is the first column of its row."""
    of_ids = np.sum([each[:, 0] for each in embeddings.values()], axis=0)
    if not dense.shape[1]:
        return of_ids
    return linear(params, f"{path}.dense", dense)[:, 0] + of_ids


def wide_deep(params, config, dense, embeddings) -> np.ndarray:
    """A linear model plus an MLP."""
    wide = first_order(params, "wide", dense, embeddings)
    vectors = [each[:, 1:] for each in embeddings.values()]
    return wide + mlp(params, "deep", side_by_side(dense, *vectors))[:, 0]


def deepfm(params, config, dense, embeddings) -> np.ndarray:
    """A factorization machine plus an MLP over the same vectors."""
    linear_part = first_order(params, "first_order", dense, embeddings)
    vectors = [each[:, None, 1:] for each in embeddings.values() if each.shape[1] > 1]
    from_dense = dense[:, :, None] * params["dense_vectors"]
    fields = np.concatenate([from_dense, *vectors], axis=1)
    squares = fields.sum(axis=1) ** 2 - (fields**2).sum(axis=1)
    deep = mlp(params, "deep", fields.reshape(len(dense), -1))[:, 0]
    return linear_part + squares.sum(axis=1) / 2 + deep


def tbsm(params, config, dense, embeddings) -> np.ndarray:
    """A small DLRM for each event of a sequence, and attention over the events."""
    past_of = {candidate: name for name, candidate in config["history"].items()}
    events = 1 + embeddings[next(iter(config["history"]))].shape[1]
    bottom = mlp(params, "bottom", dense, last_relu=True)
    bottoms = np.repeat(bottom[:, None], events, axis=1)
    fields = [bottoms] if bottom.shape[1] else []  # none without dense features
    for name, candidate in embeddings.items():
        if name in config["history"]:
            continue
        if name in past_of:
            past = embeddings[past_of[name]]
            fields.append(np.concatenate([past, candidate[:, None]], axis=1))
        else:
            fields.append(np.repeat(candidate[:, None], events, axis=1))
    stacked = np.stack(fields, axis=2)
    inputs = side_by_side(bottoms, pairs(stacked))
    vectors = mlp(params, "event", inputs, last_relu=True)
    squared = (vectors**2).sum(axis=2, keepdims=True)
    vectors = vectors / np.sqrt(np.maximum(squared, 1e-12))

    sequences = np.stack([embeddings[name] for name in config["history"]])
    is_event = (sequences != 0).any(axis=(0, 3))  # padding has rows of zeros
    past, candidate = vectors[:, :-1] * is_event[..., None], vectors[:, -1]
    query = candidate @ params["similarity"].T @ params["similarity"]
    scores = mlp(params, "attention", np.einsum("btk,bk->bt", past, query))
    context = np.einsum("bt,btk->bk", 1 / (1 + np.exp(-scores)), past)
    return mlp(params, "top", side_by_side(context, candidate))[:, 0]


def autoint(params, config, dense, embeddings) -> np.ndarray:
    """Self-attention between fields, and a linear model of the result."""
    from_dense = dense[:, :, None] * params["dense_vectors"]
    vectors = np.stack(list(embeddings.values()), axis=1)
    fields = x = np.concatenate([from_dense, vectors], axis=1)
    for i in range(len(config["attention"])):
        q, k, v, residual = (
            x @ params[f"attention.{i}.{name}"]
            for name in ("query", "key", "value", "residual")
        )
        q, k, v = (np.stack(np.split(e, config["heads"], axis=2)) for e in (q, k, v))
        weights = q @ np.swapaxes(k, 2, 3)  # [heads, batch, fields, fields]
        weights = np.exp(weights - weights.max(axis=3, keepdims=True))
        joined = weights / weights.sum(axis=3, keepdims=True) @ v
        x = np.maximum(side_by_side(*joined) + residual, 0)
    logits = linear(params, "top", x.reshape(len(x), -1))
    if config["deep"]:
        logits = logits + mlp(params, "deep", fields.reshape(len(x), -1))
    return logits[:, 0]


def finalmlp(params, config, dense, embeddings) -> np.ndarray:
    """Two gated MLPs, and a bilinear form of both outputs."""
    x = side_by_side(dense, *embeddings.values())
    outputs = []
    for i, names in enumerate((config["context1"], config["context2"])):
        gated = x
        if config["gate"]:
            path = f"gates.{i}"
            context = [embeddings[name] for name in names]
            context = side_by_side(*context) if context else params[f"{path}.context"]
            gated = 2 / (1 + np.exp(-mlp(params, f"{path}.mlp", context))) * x
        outputs.append(mlp(params, f"streams.{i}", gated, last_relu=True))
    logits = linear(params, "linear", side_by_side(*outputs))[:, 0]
    w = params["bilinear"]
    first, second = (np.split(each, len(w), axis=1) for each in outputs)
    return logits + sum(np.sum((first[h] @ w[h]) * second[h], 1) for h in range(len(w)))


def dice_mlp(params, path, x) -> np.ndarray:
    layers = sum(name.startswith(f"{path}.layers.") for name in params) // 2
    for i in range(layers):
        x = linear(params, f"{path}.layers.{i}", x)
        if i + 1 < layers:
            unit = f"{path}.activations.{i}"
            mean, var = (params[f"{unit}.norm.{name}"] for name in ("mean", "var"))
            share = 1 / (1 + np.exp(-(x - mean) / np.sqrt(var + NORM_EPSILON)))
            x = share * x + (1 - share) * params[f"{unit}.alpha"] * x
    return x


def din(params, config, dense, embeddings) -> np.ndarray:
    """Behaviours, weighted by how much they relate to the candidate."""
    vectors = dict(embeddings)
    for i, (name, candidate) in enumerate(sorted(config["history"].items())):
        past = embeddings[name]
        query = np.repeat(embeddings[candidate][:, None], past.shape[1], axis=1)
        inputs = side_by_side(past, query, past - query, past * query)
        weights = dice_mlp(params, f"units.{i}", inputs)[..., 0]
        vectors[name] = np.einsum("bt,btd->bd", weights, past)  # of zeros: zero
    return dice_mlp(params, "deep", side_by_side(dense, *vectors.values()))[:, 0]


def two_tower(params, config, dense, embeddings) -> np.ndarray:
    """The cosine of a user's and an item's vector, divided by a temperature."""
    items = [each for name, each in embeddings.items() if name in config["items"]]
    users = [each for name, each in embeddings.items() if name not in config["items"]]
    user = mlp(params, "user_tower", side_by_side(dense, *users))
    item = mlp(params, "item_tower", side_by_side(*items))
    cosine = np.sum(user * item, axis=1)
    for each in (user, item):
        cosine = cosine / np.sqrt(np.maximum(np.sum(each**2, axis=1), 1e-12))
    return cosine / config["temperature"]


def mmoe(params, config, dense, embeddings) -> np.ndarray:
    """Experts, mixed for each task by its gate, and a tower for each task."""
    x, logits = side_by_side(dense, *embeddings.values()), []
    paths = [f"experts.{i}" for i in range(config["experts"])]
    experts = np.stack([mlp(params, path, x, last_relu=True) for path in paths], axis=1)
    for i in range(len(config["tasks"])):
        gate = np.ones((1, 1), np.float32)
        if len(paths) > 1:
            gate = np.exp(linear(params, f"gates.{i}", x))
        mixed = np.einsum("be,bew->bw", gate / gate.sum(axis=1, keepdims=True), experts)
        logits.append(mlp(params, f"towers.{i}", mixed))
    return side_by_side(*logits)


MODELS = {f.__name__: f for f in (dlrm, dlrm_dcnv2, dcn, wide_deep, deepfm)}
MODELS |= {f.__name__: f for f in (tbsm, autoint, finalmlp, din, two_tower, mmoe)}


def read_samples(path: str) -> dict:
    """Reads the arguments of ``Model.logits`` from a samples file.

    Raises:
      OSError, ValueError: if the file cannot be read, or is no such file.
    """
    try:
        arrays = np.load(path)
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise ValueError("one array")
    except (ValueError, EOFError, zipfile.BadZipFile):
        raise ValueError("must be a .npz file as numpy.savez writes it") from None
    given: dict = {"ids": {}, "weights": {}}
    with arrays:
        for key in arrays.files:
            group, _, feature = key.partition("/")
            if key == "dense":
                given[key] = arrays[key]
            elif feature and group in ("ids", "weights"):
                given[group][feature] = arrays[key]
            else:
                raise ValueError(f"array {key!r}: must be dense, ids/… or weights/…")
    if "dense" not in given:
        raise ValueError("array 'dense' is missing")
    return given


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("samples", help="the .npz file")
    path = parser.parse_args().samples
    try:
        samples = read_samples(path)
        logits = Model(Path(__file__).parent).logits(**samples)
    except OSError as error:
        sys.exit(f"error: {error.filename}: {error.strerror}")
    except ValueError as error:
        sys.exit(f"error: {path}: {error}")
    np.savetxt(sys.stdout, logits, fmt="%.9g")


if __name__ == "__main__":
    main()
