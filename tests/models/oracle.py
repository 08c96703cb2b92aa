"""The models' formulas in NumPy float64, in evaluation, feature by feature and event by
event. ``params`` is a model's state as nested dicts."""

import numpy as np

from embark_jax.models import Masked


def affine(layer: dict, x: np.ndarray) -> np.ndarray:
    return x @ layer["w"] + layer["b"]


def normalized(norm: dict, x: np.ndarray) -> np.ndarray:
    """By the running statistics of training."""
    return (x - norm["mean"]) / np.sqrt(norm["var"] + 1e-5)


def mlp(params: dict, x: np.ndarray, last_relu: bool = False) -> np.ndarray:
    """An MLP, with batch normalization if it has some."""
    layers = params.get("layers", {})
    for i, layer in sorted(layers.items()):
        x = affine(layer, x)
        if last_relu or i + 1 < len(layers):
            if norm := params.get("norms", {}).get(i):
                x = normalized(norm, x) * norm["scale"] + norm["bias"]
            x = np.maximum(x, 0)
    return x


def side_by_side(*arrays: np.ndarray) -> np.ndarray:
    return np.concatenate(arrays, axis=-1)


def rows_of(embeddings: dict) -> list[np.ndarray]:
    return [np.asarray(embeddings[name], np.float64) for name in sorted(embeddings)]


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def dots_of(vectors: list[np.ndarray]) -> np.ndarray:
    """The dot products of all pairs i > j."""
    pairs = [(i, j) for i in range(len(vectors)) for j in range(i)]
    return np.stack([(vectors[i] * vectors[j]).sum(1) for i, j in pairs], axis=1)


def bottom_of(params: dict, dense: np.ndarray) -> list[np.ndarray]:
    """What the bottom MLP makes of dense features; nothing where there are none."""
    return [mlp(params["bottom"], dense, True)] if dense.shape[1] else []


def places_of(embedding):
    """The rows ``[batch, length, dim]`` of a sequence, in float64, and which of its
    places hold an event: all, if it has no mask."""
    if not isinstance(embedding, Masked):
        embedding = Masked(embedding, np.ones(embedding.shape[:2], bool))
    return np.asarray(embedding.values, np.float64), np.asarray(embedding.valid)


def dlrm(params, dense, embeddings):
    """Logits of ``DLRM``."""
    bottom = bottom_of(params, dense)
    dots = dots_of([*bottom, *rows_of(embeddings)])
    return mlp(params["top"], side_by_side(*bottom, dots))


def dlrm_dcnv2(params, dense, embeddings):
    """Logits of ``DLRMDCNv2``."""
    x = x0 = side_by_side(*bottom_of(params, dense), *rows_of(embeddings))
    for _, layer in sorted(params.get("cross", {}).items()):
        x = x0 * (x @ layer["v"] @ layer["w"] + layer["b"]) + x
    return mlp(params["top"], x)


def dcn(params, dense, embeddings):
    """Logits of ``DCN``."""
    x = x0 = side_by_side(dense, *rows_of(embeddings))
    for _, layer in sorted(params["cross"].items()):
        x = x0 * (x @ layer["w"]) + layer["b"] + x
    return affine(params["top"], side_by_side(x, mlp(params["deep"], x0, True)))


def first_order(params, dense, embeddings):
    """The linear part: a bag's weights, and those of dense features."""
    logits = sum(rows[:, :1] for rows in rows_of(embeddings))
    return logits + (affine(params["dense"], dense) if dense.shape[1] else 0)


def wide_deep(params, dense, embeddings):
    """Logits of ``WideDeep``."""
    deep = side_by_side(dense, *(rows[:, 1:] for rows in rows_of(embeddings)))
    wide = first_order(params.get("wide", {}), dense, embeddings)
    return wide + mlp(params["deep"], deep)


def deepfm(params, dense, embeddings):
    """Logits of ``DeepFM``, pair by pair."""
    vectors = params.get("dense_vectors", ())
    fields = [dense[:, [i]] * vector for i, vector in enumerate(vectors)]
    fields += [rows[:, 1:] for rows in rows_of(embeddings) if rows.shape[1] > 1]
    pairs = dots_of(fields).sum(1, keepdims=True)
    first = first_order(params.get("first_order", {}), dense, embeddings)
    return first + pairs + mlp(params["deep"], side_by_side(*fields))


def tbsm(params, dense, embeddings, history):
    """Logits of ``TBSM``."""
    past_of = {candidate: name for name, candidate in history.items()}
    bottom = bottom_of(params, dense)
    places = {name: places_of(embeddings[name]) for name in history}

    def event(place):
        rows = [
            embeddings[name]
            if place is None or name not in past_of
            else places[past_of[name]][0][:, place]
            for name in sorted(embeddings.keys() - history.keys())
        ]
        joined = side_by_side(*bottom, dots_of([*bottom, *rows]))
        vector = mlp(params["event"], joined, True)
        return vector / np.linalg.norm(vector, axis=1, keepdims=True)

    valid = np.any([valid for _, valid in places.values()], axis=0)
    events = [event(i) * is_event[:, None] for i, is_event in enumerate(valid.T)]
    candidate, a = event(None), params["similarity"]
    similar = [(past * (candidate @ a.T @ a)).sum(1) for past in events]
    weights = sigmoid(mlp(params["attention"], np.stack(similar, axis=1)))
    context = sum(weights[:, [i]] * past for i, past in enumerate(events))
    return mlp(params["top"], side_by_side(context, candidate))


def autoint(params, dense, embeddings, heads, attention, deep):
    """Logits of ``AutoInt``: self-attention between fields, head by head."""
    fields = np.stack(rows_of(embeddings), axis=1)
    if dense.shape[1]:
        of_dense = dense[:, :, None] * params["dense_vectors"]
        fields = np.concatenate([of_dense, fields], axis=1)
    x = fields
    for i in range(len(attention)):
        layer = params["attention"][i]
        q, k, v = (
            np.split(x @ layer[name], heads, axis=2)
            for name in ("query", "key", "value")
        )
        mixed = [softmax(q[h] @ k[h].transpose(0, 2, 1)) @ v[h] for h in range(heads)]
        x = np.maximum(side_by_side(*mixed) + x @ layer["residual"], 0)
    logits = affine(params["top"], x.reshape(len(x), -1))
    if deep:
        logits = logits + mlp(params["deep"], fields.reshape(len(x), -1))
    return logits


def finalmlp(params, dense, embeddings):
    """Logits of ``FinalMLP``: two MLPs, and a bilinear form of both."""
    x = side_by_side(dense, *rows_of(embeddings))
    outputs = [mlp(params["streams"][i], x, last_relu=True) for i in range(2)]
    logits = affine(params["linear"], side_by_side(*outputs))
    w = params["bilinear"]
    first, second = (np.split(output, len(w), axis=1) for output in outputs)
    for head, matrix in enumerate(w):
        logits += np.einsum("bi,ij,bj->b", first[head], matrix, second[head])[:, None]
    return logits


def dice_mlp(params: dict, x: np.ndarray) -> np.ndarray:
    """Linear layers with DIN's activation between them, in evaluation."""
    for i, layer in sorted(params["layers"].items()):
        x = affine(layer, x)
        if i + 1 < len(params["layers"]):
            unit = params["activations"][i]
            share = sigmoid(normalized(unit["norm"], x))
            x = share * x + (1 - share) * unit["alpha"] * x
    return x


def din(params, dense, embeddings, history):
    """Logits of ``DIN``, behaviour by behaviour."""
    vectors = dict(embeddings)
    for i, (name, candidate) in enumerate(sorted(history.items())):
        query, interest = embeddings[candidate], 0
        rows, valid = places_of(embeddings[name])
        for event, is_event in enumerate(valid.T):
            past = rows[:, event]
            pair = side_by_side(past, query, past - query, past * query)
            weights = dice_mlp(params["units"][i], pair) * is_event[:, None]
            interest = interest + weights * past
        vectors[name] = interest
    return dice_mlp(params["deep"], side_by_side(dense, *rows_of(vectors)))


def two_tower(params, dense, embeddings, items, temperature):
    """Logits of ``TwoTower``: cosines, divided by the temperature."""
    of_items = {name: embeddings[name] for name in items}
    of_users = {name: e for name, e in embeddings.items() if name not in items}
    user = mlp(params["user_tower"], side_by_side(dense, *rows_of(of_users)))
    item = mlp(params["item_tower"], side_by_side(*rows_of(of_items)))
    lengths = np.linalg.norm(user, axis=1) * np.linalg.norm(item, axis=1)
    return ((user * item).sum(1) / lengths / temperature)[:, None]


def mmoe(params, dense, embeddings, tasks, experts):
    """Logits of ``MMoE``: experts, mixed for each task by its gate."""
    x = side_by_side(dense, *rows_of(embeddings))
    outputs = [mlp(params["experts"][i], x, True) for i in range(experts)]
    logits = []
    for i in range(len(tasks)):
        gate = np.ones((1, 1))
        if experts > 1:
            gate = softmax(affine(params["gates"][i], x))
        mixed = sum(gate[:, [n]] * output for n, output in enumerate(outputs))
        logits.append(mlp(params["towers"][i], mixed))
    return side_by_side(*logits)
