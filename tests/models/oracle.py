"""The models' forward passes in NumPy float64, each with a bound on rounding errors.

``Bounded`` carries a value and how far a float32 computation may be from it, so that a
test's tolerance follows from the shapes and the operands' dtype alone.
"""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np

F32_ROUNDOFF = 2.0**-24


@dataclasses.dataclass(frozen=True)
class Bounded:
    value: np.ndarray
    error: np.ndarray

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
            x = Bounded(np.maximum(x.value, 0), x.error)
    return x


def concatenate(parts: list[Bounded]) -> Bounded:
    return Bounded(
        np.concatenate([p.value for p in parts], 1),
        np.concatenate([p.error for p in parts], 1),
    )


def dlrm_dcnv2(params: dict, dense, embeddings: dict, dtype: str) -> Bounded:
    """Logits of ``DLRMDCNv2``; ``params`` is its state as nested dicts."""
    bottom = mlp(params["bottom"], exact(dense), True, dtype)
    x0 = concatenate(
        [bottom, *(exact(embeddings[name]) for name in sorted(embeddings))]
    )
    x = x0
    for _, layer in sorted(params.get("cross", {}).items()):
        low = matmul(x, exact(layer["v"]), dtype)
        x = x0 * (matmul(low, exact(layer["w"]), dtype) + exact(layer["b"])) + x
    return mlp(params["top"], x, False, dtype)


def dlrm(params: dict, dense, embeddings: dict, dtype: str) -> Bounded:
    """Logits of ``DLRM``, pair by pair."""
    bottom = mlp(params["bottom"], exact(dense), True, dtype)
    vectors = [bottom, *(exact(embeddings[name]) for name in sorted(embeddings))]
    dots = []
    for i in range(len(vectors)):
        for j in range(i):
            pair = [
                Bounded(vectors[k].value[:, None, :], vectors[k].error[:, None, :])
                for k in (i, j)
            ]
            column = Bounded(*(a.swapaxes(1, 2) for a in vars(pair[1]).values()))
            dot = matmul(pair[0], column, dtype)
            dots.append(Bounded(dot.value[:, 0], dot.error[:, 0]))
    return mlp(params["top"], concatenate([bottom, *dots]), False, dtype)
