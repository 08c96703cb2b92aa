"""Boxes: parts of all plans, and what bounds the plans in one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from embark_jax.planner.candidates import Candidate

PIECES, IDS, ROWS, NODE_PIECES, OWNER = KINDS = range(5)
"""Kinds of load: four of each storage, and the time for a device's own shards. Pieces
of a node are a load of each of its devices."""
TOLERANCE = 1e-9
"""Share by which a load may be above its limit: rounding errors."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Tables alike, and what any of them may become.

    Attributes:
      count: of them.
      candidates: to choose from.
      placed: whether their shards have owners already.
    """

    count: int
    candidates: Sequence[Candidate]
    placed: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Count:
    """How many tables become one of these candidates of one storage; where there is a
    most, tables of one group."""

    candidates: np.ndarray
    least: float = 0.0
    most: float = np.inf


@dataclasses.dataclass(frozen=True, eq=False)
class Box:
    """A part of all plans.

    Attributes:
      low, high: ``[loads]`` of levels, in the program's units.
      live: ``[candidates]`` whether a table may take it.
      counts: of tables.
      cuts: each ``[candidates]`` of weights; over all tables they sum to 1 at most.
    """

    low: np.ndarray
    high: np.ndarray
    live: np.ndarray
    counts: tuple[Count, ...] = ()
    cuts: tuple[np.ndarray, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """Attributes:
    bound_ms: no plan in the box takes less.
    tables: ``[candidates]`` how many take each.
    levels: ``[loads]`` the most of any device, in the program's units.
    above_ms: ``[candidates]`` how much more the bound is for plans that take it.
    """

    bound_ms: float
    tables: np.ndarray
    levels: np.ndarray
    above_ms: np.ndarray
