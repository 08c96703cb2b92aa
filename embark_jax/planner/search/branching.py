"""Branch and bound on the peaks that are whole numbers.

Partial sums of a device, nodes of a sum and used storages are whole numbers in every
plan, and fractions in the relaxation: of 1.2 partial sums a device, plans have 1 or 2.
Either branch is a relaxation with one more limit, of a higher bound. Each time the
branch of the lowest bound is cut in two, where the fraction is worth most. The lowest
bound of all branches that are left is one of all plans, and their solutions are what
plans are rounded from: *leaves*.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from embark_jax.planner.search.linear_program import UnsolvedError
from embark_jax.planner.search.relaxation import PeakRange, Relaxation, Solution

ROUNDING = 1e-5
"""Difference from a whole number that is a rounding error of the solver."""
LEAST_WORTH = 1e-4
"""Share of the bound that a fraction must be worth to be cut."""


class Branch(NamedTuple):
    """A relaxation, and its solution where peaks are limited."""

    relaxation: Relaxation
    solution: Solution

    @property
    def bound_ms(self) -> float:
        return self.solution.bound_ms


def branch(
    roots: Sequence[Branch], programs: int, above_ms: float
) -> tuple[float, list[Branch]]:
    """Returns a bound of all plans of some relaxations, and the leaves, the lowest
    first, without roots that were not cut.

    Args:
      roots: relaxations, where no peak is limited.
      programs: most programs that are solved.
      above_ms: time of a plan; branches of no lower bound are not cut.
    """
    numbers = itertools.count()
    queue = [(root.bound_ms, next(numbers), root) for root in roots]
    heapq.heapify(queue)
    leaves, bound_ms, solved = [], np.inf, 0
    while queue:
        lowest_ms, number, lowest = heapq.heappop(queue)
        children = None
        peak = _cut(lowest) if lowest_ms < above_ms and solved < programs else None
        if peak is not None:
            children = _children(lowest, peak)
            solved += 2
        if children is None:
            bound_ms = min(bound_ms, lowest_ms)
            if number >= len(roots):
                leaves.append(lowest)
            continue
        for child in children:
            heapq.heappush(queue, (child.bound_ms, next(numbers), child))
    return bound_ms, leaves


def _cut(lowest: Branch) -> int | None:
    """Returns the peak whose fraction is worth most; None if none is worth a cut."""
    instance, values = lowest.relaxation.instance, lowest.solution.peaks
    fraction = np.mod(values + ROUNDING, 1) - ROUNDING
    fraction[(fraction <= ROUNDING) | ~instance.whole] = 0.0
    worth = np.minimum(fraction, 1 - fraction) * instance.peak_ms
    peak = int(np.argmax(worth))
    return peak if worth[peak] > LEAST_WORTH * lowest.bound_ms else None


def _children(parent: Branch, peak: int) -> list[Branch] | None:
    """Returns the branches where a peak is at most the whole number below its value,
    and at least that above it; those that are possible. None if the solver fails."""
    least, most = parent.solution.range
    below, above = most.copy(), least.copy()
    below[peak] = np.floor(parent.solution.peaks[peak])
    above[peak] = below[peak] + 1
    children = []
    for within in PeakRange(least, below), PeakRange(above, most):
        try:
            child = parent.relaxation.solve(within=within)
        except UnsolvedError:
            return None
        if child is not None:
            bound_ms = max(parent.bound_ms, child.bound_ms)
            child = dataclasses.replace(child, bound_ms=bound_ms)
            children.append(parent._replace(solution=child))
    return children
