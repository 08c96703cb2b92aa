"""Rounding: turns fractions of tables into a candidate for every table."""

from __future__ import annotations

import numpy as np

from embark_jax.planner.search.instance import Instance


def round_tables(
    instance: Instance, tables: np.ndarray, dice: np.random.Generator | None = None
) -> np.ndarray:
    """Returns ``[tables]`` candidates that are near the fractions of a relaxation.

    Args:
      instance: instance to plan.
      tables: ``[candidates]`` number of tables that take each, fractions allowed.
      dice: rounds up at random, as often as a fraction says; None rounds up the largest
        fractions.
    """
    chosen = np.zeros(len(instance.tables), np.int64)
    of_candidate = instance.candidates.table
    order = np.argsort(of_candidate, kind="stable")
    first = np.searchsorted(of_candidate[order], np.arange(len(instance.counts) + 1))
    members = np.argsort(instance.group, kind="stable")
    begin = np.concatenate([[0], np.cumsum(instance.counts)])
    for g, count in enumerate(instance.counts):
        mine = order[first[g] : first[g + 1]]
        whole = _whole(tables[mine], int(count), dice)
        chosen[members[begin[g] : begin[g + 1]]] = np.repeat(mine, whole)
    return chosen


def _whole(
    values: np.ndarray, total: int, dice: np.random.Generator | None
) -> np.ndarray:
    """Returns whole numbers near ``values`` that sum to ``total``."""
    whole = np.floor(values + 1e-6).astype(int)
    left = total - whole.sum()
    fraction = np.maximum(values - whole, 0.0)
    if dice is not None and left and np.count_nonzero(fraction > 1e-9) >= left:
        share = np.where(fraction > 1e-9, fraction, 0.0)
        up = dice.choice(len(values), left, replace=False, p=share / share.sum())
    else:
        up = np.argsort(-fraction, kind="stable")[:left]
    whole[up] += 1
    return whole
