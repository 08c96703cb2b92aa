"""The unsharded oracle: lookup, gradient and update in NumPy float64.

This code is written for plainness, not speed. Every plan must give the same results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from embark_kernels import RowOptimizer, oracle

from embark_jax.plans.tables import FeatureSpec

Tables = dict[str, np.ndarray]


def _bags(feature: FeatureSpec, ids: np.ndarray, weights: np.ndarray | None):
    """Yields ``(output index, ids, factors)`` of each bag."""
    for sample, bag in enumerate(ids):
        present = np.flatnonzero(bag >= 0)
        weight = np.ones(len(bag)) if weights is None else weights[sample]
        if feature.pooling == "none":
            for i in present:
                yield (sample, i), bag[[i]], weight[[i]].astype(np.float64)
            continue
        factor = weight[present].astype(np.float64)
        if feature.pooling == "mean":
            total = factor.sum()
            factor = factor / total if total else np.zeros_like(factor)
        yield (sample,), bag[present], factor


def lookup(
    tables: Tables,
    features: Sequence[FeatureSpec],
    ids: Mapping[str, np.ndarray],
    weights: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Returns the pooled embedding of each feature; see
    ``EmbeddingCollection.lookup``."""
    pooled = {}
    for feature in features:
        table, batch = tables[feature.table], ids[feature.name]
        shape = batch.shape if feature.pooling == "none" else batch.shape[:1]
        out = np.zeros((*shape, table.shape[1]))
        for where, bag, factor in _bags(feature, batch, weights.get(feature.name)):
            out[where] = factor @ table[bag]
        pooled[feature.name] = out
    return pooled


def row_gradients(
    tables: Tables,
    features: Sequence[FeatureSpec],
    ids: Mapping[str, np.ndarray],
    weights: Mapping[str, np.ndarray],
    gradients: Mapping[str, np.ndarray],
) -> tuple[Tables, dict[str, np.ndarray]]:
    """Returns the dense gradient of each table, and which rows the batch touched."""
    dense = {name: np.zeros_like(table) for name, table in tables.items()}
    touched = {name: np.zeros(len(table), bool) for name, table in tables.items()}
    for feature in features:
        of_feature = weights.get(feature.name)
        for where, bag, factor in _bags(feature, ids[feature.name], of_feature):
            gradient = np.asarray(gradients[feature.name][where], np.float64)
            np.add.at(dense[feature.table], bag, factor[:, None] * gradient)
            touched[feature.table][bag] = True
    return dense, touched


def init_state(tables: Tables, optimizer: RowOptimizer) -> dict[str, Tables]:
    """Returns the state of each table before the first step."""
    return {
        name: {
            state: np.full((len(table), width), float(optimizer.initial_state))
            for state, width in optimizer.state_widths(table.shape[1]).items()
        }
        for name, table in tables.items()
    }


def update(
    table: np.ndarray,
    state: Tables,
    gradient: np.ndarray,
    touched: np.ndarray,
    optimizer: RowOptimizer,
    step: int,
) -> None:
    """Updates the touched rows of one table and of its state, in place."""
    rows = np.flatnonzero(touched)
    table[:], new_state = oracle.update(
        optimizer, table, state, rows, gradient[rows], step
    )
    state.update(new_state)
