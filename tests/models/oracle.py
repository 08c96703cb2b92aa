"""The models' forward passes in NumPy float64, each with a bound on rounding errors.

``Bounded`` carries a value and how far a float32 computation may be from it, so that a
test's tolerance follows from the shapes and the operands' dtype alone.
"""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np

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

    def event(place: int | None) -> Bounded:
        rows = [
            embeddings[past_of[name]][:, place]
            if name in past_of and place is not None
            else embeddings[name]
            for name in sorted(embeddings.keys() - history.keys())
        ]
        joined = with_dots(bottom, [*map(exact, rows)], dtype)
        return unit(mlp(params["event"], joined, True, dtype))

    sequences = [embeddings[name] for name in history]
    events = []
    for place in range(sequences[0].shape[1]):
        is_event = sum(np.abs(each[:, place]).sum(1) for each in sequences) > 0
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
