"""What sums, updates and attention must give, by the textbook: NumPy in float64, for
checks and tests.

Each result comes with *magnitudes*: what it would be if nothing in it cancelled.
Rounding errors are held against these.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embark_kernels.optimizers import (
    FTRL,
    SGD,
    Adagrad,
    LazyAdam,
    RowOptimizer,
    RowwiseAdagrad,
)

Array = NDArray[np.float64]
Updated = tuple[Array, dict[str, Array]]


def sum_rows(
    values: ArrayLike,
    source: ArrayLike,
    target: ArrayLike,
    targets: int,
    weights: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Sums rows of ``values``: of a table by bag, or of gradients by row.

    Args:
      values: ``[m, width]``.
      source: ``[n]`` row of each term in ``values``; out of range where padded.
      target: ``[n]`` row of each term in the result; likewise.
      targets: number of rows of the result.
      weights: ``[n]`` factors, or None.

    Returns:
      ``[targets, width]`` sums, and their magnitudes.
    """
    values = np.asarray(values, np.float64)
    source, target = np.asarray(source), np.asarray(target)
    used = (source >= 0) & (source < len(values)) & (target >= 0) & (target < targets)
    added = values[source[used]]
    if weights is not None:
        added = added * np.asarray(weights, np.float64)[used, None]
    sums, magnitudes = np.zeros((2, targets, values.shape[1]))
    np.add.at(sums, target[used], added)
    np.add.at(magnitudes, target[used], np.abs(added))
    return sums, magnitudes


def update(
    optimizer: RowOptimizer,
    table: ArrayLike,
    states: Mapping[str, ArrayLike],
    rows: ArrayLike,
    gradients: ArrayLike,
    step: int,
    mean_square: ArrayLike | None = None,
) -> Updated:
    """Applies an optimizer to rows of a table.

    Args:
      table, states: as in ``embark_kernels.update_rows``.
      rows: ``[k]`` rows, each once.
      gradients: ``[k, width]`` gradients of these rows.
      step: number of this step, from 1.
      mean_square: ``[k]`` mean of gradient² over whole rows; None takes it from
        ``gradients``.

    Returns:
      The new table and states.
    """
    table = np.array(table, np.float64)
    new = {name: np.array(state, np.float64) for name, state in states.items()}
    rows, gradient = np.asarray(rows), np.asarray(gradients, np.float64)
    state = {name: values[rows] for name, values in new.items()}
    row, rate = table[rows], optimizer.learning_rate
    if optimizer.schedule is not None:
        rate *= float(optimizer.schedule(step - 1))
    row = row * (1 - rate * optimizer.weight_decay)
    match optimizer:
        case SGD():
            row = row - rate * gradient
        case Adagrad() | RowwiseAdagrad():
            added = gradient**2
            if isinstance(optimizer, RowwiseAdagrad):
                added = added.mean(axis=1) if mean_square is None else mean_square
                added = np.asarray(added, np.float64)[:, None]
            state["accumulator"] = state["accumulator"] + added
            root = np.sqrt(state["accumulator"])
            row = row - rate * gradient / (root + optimizer.eps)
        case LazyAdam(_, beta1, beta2, eps):
            mean = beta1 * state["mean"] + (1 - beta1) * gradient
            variance = beta2 * state["variance"] + (1 - beta2) * gradient**2
            state = {"mean": mean, "variance": variance}
            root = np.sqrt(variance / (1 - beta2**step))
            row = row - rate * mean / (1 - beta1**step) / (root + eps)
        case FTRL(_, beta, l1, l2):
            # As in the paper, but a row that is not 0 says what its z was.
            root_before = np.sqrt(state["accumulator"])
            squares = state["accumulator"] + gradient**2
            z_of_row = -((beta + root_before) / rate + l2) * row - np.sign(row) * l1
            z_before = np.where(row == 0, state["z"], z_of_row)
            sigma = (np.sqrt(squares) - root_before) / rate
            z = z_before + gradient - sigma * row
            solved = -(z - np.sign(z) * l1) / ((beta + np.sqrt(squares)) / rate + l2)
            row = np.where(np.abs(z) <= l1, 0.0, solved)
            state = {"accumulator": squares, "z": z}
        case _:
            raise TypeError(f"no textbook has {optimizer!r}")
    table[rows] = row
    for name, values in state.items():
        new[name][rows] = values
    return table, new


def update_magnitudes(
    optimizer: RowOptimizer,
    table: ArrayLike,
    states: Mapping[str, ArrayLike],
    rows: ArrayLike,
    gradients: ArrayLike,
    step: int,
) -> Updated:
    """Returns the magnitudes of ``update`` from states >= 0; 0 in untouched rows."""
    # Of one sign, row and change only add up.
    table = -np.abs(np.asarray(table, np.float64))
    gradients = np.abs(np.asarray(gradients, np.float64))
    new, new_states = update(optimizer, table, states, rows, gradients, step)
    untouched = np.ones(len(new), bool)
    untouched[np.asarray(rows)] = False
    for values in (new, *new_states.values()):
        values[untouched] = 0
    return np.abs(new), new_states


def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    gradient: ArrayLike,
    first: ArrayLike,
    length: ArrayLike,
    weights: str,
    divisor: int,
) -> list[tuple[Array, Array]]:
    """Attends causally in each of some packed samples, and differentiates that.

    Args:
      query, key, value, gradient: ``[events, heads, dim]``; the last is that of sums.
      first, length: ``[samples]`` first event and number of events of each sample.
      weights, divisor: as in ``embark_kernels.attention``.

    Returns:
      Sums of values, and gradients of queries, keys and values, ``[events, heads,
      dim]`` each, and their magnitudes. Shares are as large as the rounding errors of
      their parts allow: SiLU of x counts as x, its slope as 1 + x.
    """
    arrays = [np.asarray(x, np.float64) for x in (query, key, value, gradient)]
    results = [(np.zeros_like(x), np.zeros_like(x)) for x in arrays]
    for begin, count in zip(np.asarray(first), np.asarray(length), strict=True):
        own = slice(begin, begin + count)
        by_head = [x[own].swapaxes(0, 1) for x in arrays]
        found = _sample_attention(by_head, weights, divisor)
        for result, of_sample in zip(results, found, strict=True):
            for whole, part in zip(result, of_sample, strict=True):
                whole[own] = part.swapaxes(0, 1)
    return results


def _sample_attention(
    arrays: list[Array], weights: str, divisor: int
) -> list[tuple[Array, Array]]:
    """Attends in one sample, ``[heads, count, dim]``: see ``attention``."""
    query, key, value, gradient = arrays

    def sum_products(matrix, rough_matrix, rows):
        return matrix @ rows, rough_matrix @ np.abs(rows)

    scale = 1 / np.sqrt(query.shape[-1])
    seen = np.tri(query.shape[1], dtype=bool)
    score = np.where(seen, query @ key.swapaxes(1, 2) * scale, 0)
    share_gradient = gradient @ value.swapaxes(1, 2)
    if weights == "silu":
        sigmoid = 1 / (1 + np.exp(-score))
        share, rough_share = score * sigmoid / divisor, np.abs(score) / divisor
        slope = sigmoid * (1 + score * (1 - sigmoid)) / divisor
        score_gradient = share_gradient * slope
        rough = np.abs(share_gradient) * (1 + np.abs(score)) / divisor
    else:
        exponential = np.where(seen, np.exp(score), 0)
        share = rough_share = exponential / exponential.sum(axis=-1, keepdims=True)
        product = (share @ value) * gradient
        mean = product.sum(axis=-1, keepdims=True)
        score_gradient = share * (share_gradient - mean)
        rough_mean = np.abs(product).sum(axis=-1, keepdims=True)
        rough = share * (np.abs(share_gradient) + rough_mean)
    score_gradient = np.where(seen, score_gradient, 0) * scale
    rough = np.where(seen, rough, 0) * scale
    turned, rough_turned = (x.swapaxes(1, 2) for x in (score_gradient, rough))
    return [
        sum_products(share, rough_share, value),
        sum_products(score_gradient, rough, key),
        sum_products(turned, rough_turned, query),
        sum_products(share.swapaxes(1, 2), rough_share.swapaxes(1, 2), gradient),
    ]
