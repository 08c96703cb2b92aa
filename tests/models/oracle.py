"""The models' forward passes in NumPy float64, each with a bound on rounding errors.

``Bounded`` carries a value and how far a float32 computation may be from it, so that a
test's tolerance follows from the shapes and the operands' dtype alone.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable

import ml_dtypes
import numpy as np

from tests.models import sequence_oracle, small

F32_ROUNDOFF = 2.0**-24
ELEMENTARY = 8 * F32_ROUNDOFF
"""Relative error that XLA's exponential and square root are granted."""


@dataclasses.dataclass(frozen=True)
class Bounded:
    value: np.ndarray
    error: np.ndarray

    def column(self) -> Bounded:
        return Bounded(self.value[:, None], self.error[:, None])

    def __add__(self, other: Bounded) -> Bounded:
        return rounded(self.value + other.value, self.error + other.error)

    def __mul__(self, other: Bounded) -> Bounded:
        error = (
            np.abs(self.value) * other.error
            + self.error * np.abs(other.value)
            + self.error * other.error
        )
        return rounded(self.value * other.value, error)


def exact(array) -> Bounded:
    value = np.asarray(array, np.float64)
    return Bounded(value, np.zeros_like(value))


def rounded(value: np.ndarray, error: np.ndarray) -> Bounded:
    """One float32 rounding on top of what is there already."""
    return Bounded(value, error + F32_ROUNDOFF * (np.abs(value) + error))


def matmul(x: Bounded, w: Bounded, dtype: str) -> Bounded:
    """Operands rounded to ``dtype``, then a float32 sum of n terms, in any order."""
    x, w = operand(x, dtype), operand(w, dtype)
    x_size, w_size = np.abs(x.value) + x.error, np.abs(w.value) + w.error
    error = x.error @ np.abs(w.value) + x_size @ w.error
    error += x.value.shape[-1] * F32_ROUNDOFF * (x_size @ w_size)
    return Bounded(x.value @ w.value, error)


def operand(a: Bounded, dtype: str) -> Bounded:
    """Rounding is monotonic: it errs only where the error crosses a rounding edge."""
    if dtype == "float32":
        return a
    low, value, high = (
        x.astype(ml_dtypes.bfloat16).astype(np.float64)
        for x in (a.value - a.error, a.value, a.value + a.error)
    )
    return Bounded(value, np.maximum(high - value, value - low))


def mlp(params: dict, x: Bounded, last_relu: bool, dtype: str) -> Bounded:
    layers = [params["layers"][i] for i in sorted(params["layers"])]
    for i, layer in enumerate(layers):
        x = matmul(x, exact(layer["w"]), dtype) + exact(layer["b"])
        if last_relu or i + 1 < len(layers):
            x = operand(x, dtype)
            x = Bounded(np.maximum(x.value, 0), x.error)
    return x


def concatenate(parts: list[Bounded]) -> Bounded:
    return Bounded(
        np.concatenate([p.value for p in parts], 1),
        np.concatenate([p.error for p in parts], 1),
    )


def bottom_of(params: dict, dense, dtype: str) -> list[Bounded]:
    """What the bottom MLP makes of dense features; nothing where there are none."""
    if dense.shape[1]:
        return [mlp(params["bottom"], exact(dense), True, dtype)]
    assert not params.get("bottom")
    return []


def in_order(embeddings: dict) -> list[Bounded]:
    return [exact(embeddings[name]) for name in sorted(embeddings)]


def dlrm_dcnv2(params: dict, dense, embeddings: dict, dtype: str) -> Bounded:
    """Logits of ``DLRMDCNv2``; ``params`` is its state as nested dicts."""
    bottom = bottom_of(params, dense, dtype)
    x = x0 = operand(concatenate([*bottom, *in_order(embeddings)]), dtype)
    for _, layer in sorted(params.get("cross", {}).items()):
        low = matmul(x, exact(layer["v"]), dtype)
        high = operand(matmul(low, exact(layer["w"]), dtype), dtype)
        x = x0 * (high + exact(layer["b"])) + x
    if "logit" not in params:
        return mlp(params["top"], x, False, dtype)
    beside = mlp(params["top"], x0, True, dtype)
    logit = matmul(concatenate([x, beside]), exact(params["logit"]["w"]), dtype)
    return logit + exact(params["logit"]["b"])


def dlrm(params: dict, dense, embeddings: dict, dtype: str) -> Bounded:
    """Logits of ``DLRM``."""
    bottom = bottom_of(params, dense, dtype)
    joined = with_dots(bottom, in_order(embeddings), dtype)
    return mlp(params["top"], joined, False, dtype)


def with_dots(bottom: list[Bounded], rows: list[Bounded], dtype: str) -> Bounded:
    """The vector of the bottom, and the dot products of all, pair by pair."""
    vectors, dots = [*bottom, *rows], []
    for i in range(len(vectors)):
        for j in range(i):
            pair = [
                Bounded(vectors[k].value[:, None, :], vectors[k].error[:, None, :])
                for k in (i, j)
            ]
            column = Bounded(*(a.swapaxes(1, 2) for a in vars(pair[1]).values()))
            dot = matmul(pair[0], column, dtype)
            dots.append(Bounded(dot.value[:, 0], dot.error[:, 0]))
    return concatenate([*bottom, *dots])


def scaled(a: Bounded, factor: float) -> Bounded:
    """By a power of two: exact."""
    return Bounded(a.value * factor, a.error * abs(factor))


def total(a: Bounded, axis: int) -> Bounded:
    """A float32 sum of n terms, in any order."""
    size = (np.abs(a.value) + a.error).sum(axis)
    error = a.error.sum(axis) + a.value.shape[axis] * F32_ROUNDOFF * size
    return Bounded(a.value.sum(axis), error)


def dcn(params: dict, dense, embeddings: dict, dtype: str) -> Bounded:
    """Logits of ``DCN``."""
    x = x0 = operand(concatenate([exact(dense), *in_order(embeddings)]), dtype)
    for _, layer in sorted(params["cross"].items()):
        x = x0 * matmul(x, exact(layer["w"]), dtype) + exact(layer["b"]) + x
    joined = concatenate([x, mlp(params["deep"], x0, True, dtype)])
    top = params["top"]
    return matmul(joined, exact(top["w"]), dtype) + exact(top["b"])


def first_order(params: dict, dense, embeddings: dict, dtype: str) -> Bounded:
    columns = [exact(e[:, :1]) for e in embeddings.values()]
    logit = total(concatenate(columns), 1).column()
    if not dense.shape[1]:
        return logit
    product = matmul(exact(dense), exact(params["dense"]["w"]), dtype)
    return product + exact(params["dense"]["b"]) + logit


def wide_deep(params: dict, dense, embeddings: dict, dtype: str) -> Bounded:
    """Logits of ``WideDeep``."""
    vectors = [exact(embeddings[name][:, 1:]) for name in sorted(embeddings)]
    deep = mlp(params["deep"], concatenate([exact(dense), *vectors]), False, dtype)
    return first_order(params.get("wide", {}), dense, embeddings, dtype) + deep


def deepfm(params: dict, dense, embeddings: dict, dtype: str) -> Bounded:
    """Logits of ``DeepFM``, pair by pair; the bound is of the linear-time form."""
    fields = [
        exact(dense[:, [i]]) * exact(vector)
        for i, vector in enumerate(params.get("dense_vectors", ()))
    ]
    fields += [
        exact(embeddings[name][:, 1:])
        for name in sorted(embeddings)
        if embeddings[name].shape[1] > 1
    ]
    pairs = sum(
        (fields[i].value * fields[j].value).sum(1)
        for i in range(len(fields))
        for j in range(i)
    )
    stacked = Bounded(
        np.stack([f.value for f in fields]), np.stack([f.error for f in fields])
    )
    summed = total(stacked, 0)
    squares = total(stacked * stacked, 0)
    linear_time = total(summed * summed + scaled(squares, -1.0), 1)
    interaction = Bounded(pairs, scaled(linear_time, 0.5).error).column()
    deep = mlp(params["deep"], concatenate(fields), False, dtype)
    first = first_order(params.get("first_order", {}), dense, embeddings, dtype)
    return first + interaction + deep


def tbsm(params: dict, dense, embeddings: dict, dtype: str, history: dict) -> Bounded:
    """Logits of ``TBSM``, event by event."""
    past_of = {candidate: name for name, candidate in history.items()}
    bottom = bottom_of(params, dense, dtype)
    places = {name: sequence_oracle.places_of(embeddings[name]) for name in history}

    def event(place: int | None) -> Bounded:
        rows = [
            places[past_of[name]][0][:, place]
            if name in past_of and place is not None
            else embeddings[name]
            for name in sorted(embeddings.keys() - history.keys())
        ]
        joined = with_dots(bottom, [*map(exact, rows)], dtype)
        return unit(mlp(params["event"], joined, True, dtype))

    valid = np.any([valid for _, valid in places.values()], axis=0)
    events = []
    for place, is_event in enumerate(valid.T):
        vector = event(place)
        events.append(
            Bounded(vector.value * is_event[:, None], vector.error * is_event[:, None])
        )
    candidate = event(None)

    a = exact(params["similarity"])
    query = matmul(candidate, Bounded(a.value.T, a.error.T), dtype)
    query = matmul(query, a, dtype)
    similarities = concatenate([total(each * query, 1).column() for each in events])
    weights = sigmoid(mlp(params["attention"], similarities, False, dtype))
    weighted = [
        Bounded(weights.value[:, [place]], weights.error[:, [place]]) * each
        for place, each in enumerate(events)
    ]
    context = total(
        Bounded(
            np.stack([each.value for each in weighted]),
            np.stack([each.error for each in weighted]),
        ),
        0,
    )
    return mlp(params["top"], concatenate([context, candidate]), False, dtype)


def unit(x: Bounded) -> Bounded:
    """Each row divided by its length."""
    squared = total(x * x, 1)
    longest, length, shortest = (
        np.sqrt(squared.value + sign * squared.error) for sign in (1, 0, -1)
    )
    error = 1 / shortest - 1 / longest + ELEMENTARY / length
    return x * Bounded(1 / length, error).column()


def sigmoid(x: Bounded) -> Bounded:
    value = 1 / (1 + np.exp(-x.value))
    return Bounded(value, x.error / 4 + ELEMENTARY * value)


def near(value: np.ndarray) -> Bounded:
    """Bounds what has no derived bound, through exponentials: 1e-5 of the largest."""
    return Bounded(value, np.full_like(value, 1e-5 * np.abs(value).max()))


def affine(layer: dict, x: np.ndarray) -> np.ndarray:
    return x @ layer["w"] + layer["b"]


def normalized(norm: dict, x: np.ndarray) -> np.ndarray:
    """By the running statistics of training."""
    return (x - norm["mean"]) / np.sqrt(norm["var"] + 1e-5)


def plain_mlp(params: dict, x: np.ndarray, last_relu: bool = False) -> np.ndarray:
    """An MLP in float64, with batch normalization if it has some."""
    for i, layer in sorted(params["layers"].items()):
        x = affine(layer, x)
        if last_relu or i + 1 < len(params["layers"]):
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


def autoint(params, dense, embeddings, dtype, heads, attention, deep) -> Bounded:
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
        logits = logits + plain_mlp(params["deep"], fields.reshape(len(x), -1))
    return near(logits)


def finalmlp(params, dense, embeddings, dtype, gate, context1, context2) -> Bounded:
    """Logits of ``FinalMLP``: two gated MLPs, and a bilinear form of both."""
    x = side_by_side(dense, *rows_of(embeddings))
    outputs = []
    for i, names in enumerate((context1, context2)):
        inputs = x
        if gate:
            gates = params["gates"][i]
            context = [embeddings[name] for name in names] or [gates["context"]]
            gate_logits = plain_mlp(gates["mlp"], side_by_side(*context))
            inputs = 2 * x / (1 + np.exp(-gate_logits))
        outputs.append(plain_mlp(params["streams"][i], inputs, last_relu=True))
    logits = affine(params["linear"], side_by_side(*outputs))
    w = params["bilinear"]
    first, second = (np.split(output, len(w), axis=1) for output in outputs)
    for head, matrix in enumerate(w):
        logits += np.einsum("bi,ij,bj->b", first[head], matrix, second[head])[:, None]
    return near(logits)


def dice_mlp(params: dict, x: np.ndarray) -> np.ndarray:
    """Linear layers with DIN's activation between them, in evaluation."""
    for i, layer in sorted(params["layers"].items()):
        x = affine(layer, x)
        if i + 1 < len(params["layers"]):
            unit = params["activations"][i]
            share = 1 / (1 + np.exp(-normalized(unit["norm"], x)))
            x = share * x + (1 - share) * unit["alpha"] * x
    return x


def din(params, dense, embeddings, dtype, history) -> Bounded:
    """Logits of ``DIN``, behaviour by behaviour."""
    vectors = dict(embeddings)
    for i, (name, candidate) in enumerate(sorted(history.items())):
        query, interest = embeddings[candidate], 0
        rows, valid = sequence_oracle.places_of(embeddings[name])
        for event, is_event in enumerate(valid.T):
            past = rows[:, event]
            pair = side_by_side(past, query, past - query, past * query)
            weights = dice_mlp(params["units"][i], pair) * is_event[:, None]
            interest = interest + weights * past
        vectors[name] = interest
    return near(dice_mlp(params["deep"], side_by_side(dense, *rows_of(vectors))))


def two_tower(params, dense, embeddings, dtype, items, temperature) -> Bounded:
    """Logits of ``TwoTower``: cosines, divided by the temperature."""
    of_items = {name: embeddings[name] for name in items}
    of_users = {name: e for name, e in embeddings.items() if name not in items}
    user = plain_mlp(params["user_tower"], side_by_side(dense, *rows_of(of_users)))
    item = plain_mlp(params["item_tower"], side_by_side(*rows_of(of_items)))
    lengths = np.linalg.norm(user, axis=1) * np.linalg.norm(item, axis=1)
    return near(((user * item).sum(1) / lengths / temperature)[:, None])


def mmoe(params, dense, embeddings, dtype, tasks, experts) -> Bounded:
    """Logits of ``MMoE``: experts, mixed for each task by its gate."""
    x = side_by_side(dense, *rows_of(embeddings))
    outputs = [plain_mlp(params["experts"][i], x, True) for i in range(experts)]
    logits = []
    for i in range(len(tasks)):
        gate = np.ones((1, 1))
        if experts > 1:
            gate = softmax(affine(params["gates"][i], x))
        mixed = sum(gate[:, [n]] * output for n, output in enumerate(outputs))
        logits.append(plain_mlp(params["towers"][i], mixed))
    return near(side_by_side(*logits))


def hstu(params, dense, embeddings, dtype, history, heads) -> Bounded:
    """Logits of ``HSTU``."""
    logits = sequence_oracle.hstu(params, dense, embeddings, history, heads, plain_mlp)
    return near(logits[:, None])


def dlrm_v4(
    params, dense, embeddings, dtype, history, content, encodings, heads
) -> Bounded:
    """Logits of ``DLRMv4``."""
    logits = sequence_oracle.dlrm_v4(
        params, dense, embeddings, history, content, encodings, heads
    )
    return near(logits[:, None])


def next_item(
    params, dense, embeddings, dtype, history, encoder, heads, temperature
) -> Bounded:
    """Logits of ``NextItem``."""
    logits = sequence_oracle.next_item(
        params, dense, embeddings, history, encoder, heads, temperature
    )
    return near(logits[:, None])


ORACLES = {kind: globals()[kind] for kind in small.KINDS}
"""The function of each model of the registry, which has its name."""
KNOW_NORMS = {"autoint", "finalmlp", "two_tower", "mmoe"}
"""Models whose oracle normalizes batches."""


def oracle_of(config) -> Callable[..., Bounded]:
    """``(params, dense, embeddings, dtype) -> logits [batch, tasks or 1]``, of a
    config."""
    function = ORACLES[config.kind]
    _, _, _, _, *options = inspect.signature(function).parameters
    return functools.partial(function, **{n: getattr(config, n) for n in options})
