"""Gradients beside differences of a formula in NumPy."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

STEP = 1e-5
"""Of central differences in float64, which are then off by some 1e-9 of the slope."""
TOLERANCE = 1e-4
"""A float32 gradient goes through some hundred roundings of 6e-8, and sums of terms
that are up to ten times its own size."""


def assert_slopes(
    formula: Callable[..., Any], arrays: Any, gradients: Any, where: Any = None
) -> None:
    """Checks the gradients of a formula along a random direction of each array.

    Args:
      formula: returns a number of ``arrays``.
      arrays, gradients: trees alike.
      where: a tree alike: which elements change; None is all.
    """
    rng = np.random.default_rng(0)
    leaves, tree = jax.tree.flatten(arrays)
    paths = [
        jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(arrays)
    ]
    masks = [1.0] * len(leaves) if where is None else jax.tree.leaves(where)
    slopes = jax.tree.leaves(gradients)
    assert len(slopes) == len(leaves)
    steepest = max(np.abs(slope).max(initial=0) for slope in slopes)
    for i, (leaf, slope) in enumerate(zip(leaves, slopes, strict=True)):
        direction = rng.choice((-1.0, 1.0), np.shape(leaf)) * masks[i]
        below, above = (
            formula(tree.unflatten([*leaves[:i], leaf + step, *leaves[i + 1 :]]))
            for step in (-STEP * direction, STEP * direction)
        )
        terms = np.asarray(slope, np.float64) * direction
        allowed = TOLERANCE * (np.abs(terms).sum() + 1e-3 * steepest)
        difference = (above - below) / (2 * STEP)
        assert abs(terms.sum() - difference) <= allowed, (
            paths[i],
            terms.sum(),
            difference,
            allowed,
        )
