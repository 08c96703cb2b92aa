"""The model of ``run.py`` with its rows in a mapped file and no cache: a step gathers
the rows of its batch, and writes them back, in NumPy."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from embark_jax import models

RATE, EPS = 0.1, 1e-8
ROWS_AT_ONCE = 1 << 16


def make_step(
    shapes: dict[str, tuple[int, ...]],
    rows: int,
    dense_features: int,
    layers: tuple[tuple[int, ...], tuple[int, ...]],
    scratch: Path | None,
) -> Callable[[Any], float]:
    """Returns a function that trains on a batch and gives its loss.

    Args:
      shapes: shape of each table's pooled rows, of a sample.
      rows: rows of each table; all are written first.
      dense_features, layers: as of the model.
      scratch: folder of the file, which has no name.
    """
    (dim,) = next(iter(shapes.values()))
    with tempfile.NamedTemporaryFile(dir=scratch) as file:
        shape = len(shapes), rows, dim + 1  # the accumulator is a row's last value
        stored = np.memmap(file.name, np.float32, "w+", shape=shape)
    some = np.random.default_rng(0).uniform(-0.01, 0.01, (ROWS_AT_ONCE, dim + 1))
    for table in stored:
        for begin in range(0, rows, ROWS_AT_ONCE):
            part = table[begin : begin + ROWS_AT_ONCE]
            part[:] = np.abs(some[: len(part)])
    graph, params = nnx.split(
        models.DLRM(shapes, dense_features, *layers, rngs=nnx.Rngs(0))
    )

    @jax.jit
    def gradients(params, gathered, place, dense, labels):
        def loss(params, gathered):
            pooled = {
                name: gathered[i][place[i]].sum(axis=1) for i, name in enumerate(shapes)
            }
            logits = nnx.merge(graph, params)(dense, pooled)
            return optax.sigmoid_binary_cross_entropy(logits, labels).mean()

        value, (dense_slope, slope) = jax.value_and_grad(loss, (0, 1))(params, gathered)
        return (
            jax.tree.map(lambda p, g: p - RATE * g, params, dense_slope),
            value,
            slope,
        )

    def train(batch) -> float:
        nonlocal params
        found = [np.unique(batch.ids[name], return_inverse=True) for name in shapes]
        most = max(each.size for each in batch.ids.values())
        gathered = np.zeros((len(shapes), most, dim), np.float32)
        for i, (ids, _) in enumerate(found):
            gathered[i, : len(ids)] = stored[i, ids, :dim]
        place = jnp.stack(
            [
                inverse.reshape(batch.ids[name].shape).astype(np.int32)
                for name, (_, inverse) in zip(shapes, found, strict=True)
            ]
        )
        params, value, slope = gradients(
            params, gathered, place, batch.dense, batch.labels
        )
        slope = np.asarray(slope)
        for i, (ids, _) in enumerate(found):
            mine = slope[i, : len(ids)]
            row = stored[i, ids]
            row[:, dim] += np.square(mine).mean(axis=1)
            row[:, :dim] -= RATE * mine / (np.sqrt(row[:, dim:]) + EPS)
            stored[i, ids] = row
        return float(value)

    return train
