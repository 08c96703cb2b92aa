"""HSTU and SASRec in NumPy, one sample, event and head at a time, without padding."""

import numpy as np

from tests.models.oracle import affine, mlp, places_of


def layer_norm(norm, x):
    centred = x - x.mean(-1, keepdims=True)
    unscaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    return unscaled * norm["scale"] + norm["bias"]


def silu(x):
    return x / (1 + np.exp(-x))


def stu(layer, x, heads, longest):
    """A layer of HSTU; ``longest`` is what attention is divided by."""
    events, width = x.shape
    uvqk = silu(affine(layer["uvqk"], layer_norm(layer["norm"], x)))
    u, v, q, k = np.split(uvqk, 4, -1)
    dim, mixed = width // heads, np.zeros((events, width))
    for head in range(heads):
        part = slice(head * dim, (head + 1) * dim)
        for i in range(events):
            for j in range(i + 1):
                score = q[i, part] @ k[j, part] / dim**0.5 + layer["bias"][i - j]
                mixed[i, part] += silu(score) / longest * v[j, part]
    return x + affine(layer["output"], u * layer_norm(layer["gated_norm"], mixed))


def transformer(layer, x, heads, longest):
    """A layer of SASRec."""
    events, width = x.shape
    q, k, v = np.split(affine(layer["qkv"], layer_norm(layer["norm"], x)), 3, -1)
    dim, mixed = width // heads, np.zeros((events, width))
    for head in range(heads):
        part = slice(head * dim, (head + 1) * dim)
        for i in range(events):
            scores = k[: i + 1, part] @ q[i, part] / dim**0.5
            weights = np.exp(scores - scores.max())
            mixed[i, part] = weights / weights.sum() @ v[: i + 1, part]
    x = x + affine(layer["output"], mixed)
    hidden = np.maximum(affine(layer["inner"], layer_norm(layer["inner_norm"], x)), 0)
    return x + affine(layer["outer"], hidden)


def last_event(encoder, kind, events, heads):
    """What the last of ``[events, width]`` has seen."""
    longest = len(encoder["position_vectors"])
    x = events + encoder["position_vectors"][: len(events)]
    layer_of = stu if kind == "hstu" else transformer
    for i in sorted(encoder["layers"]):
        x = layer_of(encoder["layers"][i], x, heads, longest)
    return layer_norm(encoder["norm"], x)[-1]


def context(params, name, dense, embeddings, left_out):
    """The first event of each sample."""
    start = np.repeat(params["start"][None], len(dense), axis=0)
    for i, feature in enumerate(sorted(embeddings.keys() - left_out)):
        start = start + affine(params[name][i], embeddings[feature])
    return start + (affine(params["dense"], dense) if dense.shape[1] else 0)


def events_of(embedding, sample):
    """The rows of a sample's events."""
    rows, valid = places_of(embedding)
    return rows[sample][valid[sample]]


def hstu(params, dense, embeddings, history, heads):
    """Logits ``[batch]`` of the ranking model."""
    features = {*history, *history.values()}
    start = context(params, "context_projections", dense, embeddings, features)
    logits = []
    for sample in range(len(dense)):
        total = 0
        for i, (past, now) in enumerate(sorted(history.items())):
            rows = [*events_of(embeddings[past], sample), embeddings[now][sample]]
            total = total + affine(params["event_projections"][i], np.array(rows))
        events = np.concatenate([start[[sample]], total])
        seen = last_event(params["encoder"], "hstu", events, heads)
        logits.append(mlp(params["top"], seen[None])[0, 0])
    return np.array(logits)


def wide_stu(layer, x, heads, longest):
    """A layer of HSTU as MLPerf has it."""
    events = len(x)
    uvqk = affine(layer["uvqk"], layer_norm(layer["norm"], x))
    u, v, q, k = np.split(uvqk, 4, -1)
    u, dim, mixed = silu(u), v.shape[1] // heads, np.zeros_like(v)
    for head in range(heads):
        part = slice(head * dim, (head + 1) * dim)
        for i in range(events):
            for j in range(i + 1):
                score = q[i, part] @ k[j, part] / dim**0.5
                mixed[i, part] += silu(score) / longest * v[j, part]
    gated = u * layer_norm(layer["gated_norm"], mixed)
    return x + affine(layer["output"], np.concatenate([u, mixed, gated], -1))


def normed_mlp(params, x):
    hidden = affine(params["inner"], x)
    hidden = hidden / (1 + np.exp(-layer_norm(params["inner_norm"], hidden)))
    outer = affine(params["outer"], hidden)
    return layer_norm(params["norm"], outer) if "norm" in params else outer


def dlrm_v4(params, dense, embeddings, history, content, encodings, heads):
    """Logits ``[batch]`` of MLPerf's ranking model."""
    features = {*history, *history.values()}
    others = sorted(history.keys() - {content, *encodings})
    vectors = params["position_vectors"]
    width = vectors.shape[1]
    logits = []
    for sample in range(len(dense)):
        _, valid = places_of(embeddings[content])
        rows = {}
        for past, now in history.items():
            events = places_of(embeddings[past])[0][sample][valid[sample]]
            rows[past] = np.array([*events, embeddings[now][sample]], float)
        events = normed_mlp(params["content_mlp"], rows[content])
        if others:
            joined = np.concatenate([rows[name] for name in others], -1)
            events = events + normed_mlp(params["others_mlp"], joined)
        events = events * width**0.5 + sum(rows[name] for name in encodings)
        context = [
            affine(params["context_projections"][i], embeddings[name][sample])
            for i, name in enumerate(sorted(embeddings.keys() - features))
        ]
        x = np.concatenate([np.array(context) * width**0.5, events])
        x = x + vectors[len(x) - 1 - np.arange(len(x))]
        for i in sorted(params["layers"]):
            x = wide_stu(params["layers"][i], x, heads, len(vectors))
        user = affine(params["combine"], np.concatenate([x[-1], dense[sample]]))
        own = np.concatenate([rows[name][-1] for name in [content, *others]])
        product = layer_norm(params["user_norm"], user) * normed_mlp(
            params["item_mlp"], own
        )
        logits.append(normed_mlp(params["top"], product)[0])
    return np.array(logits)


def next_item(params, dense, embeddings, history, encoder, heads, temperature):
    """Logits ``[batch]`` of the retrieval model."""
    ((past, item),) = history.items()
    start = context(params, "projections", dense, embeddings, {past, item})
    logits = []
    for sample in range(len(dense)):
        rows = events_of(embeddings[past], sample)
        events = np.concatenate([start[[sample]], rows])
        user = last_event(params["encoder"], encoder, events, heads)
        row = np.asarray(embeddings[item][sample], np.float64)
        cosine = user @ row / np.linalg.norm(user) / np.linalg.norm(row)
        logits.append(cosine / temperature)
    return np.array(logits)
