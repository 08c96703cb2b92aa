"""Branch and bound: takes the box of plans with the least bound apart, again and again,
until a plan is near the bound of all that are left.

The boxes of several searches are looked at together, so that none takes longer than it
is promising.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from embark_jax.planner.box import Box, Solution
from embark_jax.planner.branching import splits
from embark_jax.planner.cuts import Cuts
from embark_jax.planner.lines import solve
from embark_jax.planner.program import Program

GOOD = 1.02
"""Times the lower bound: with a plan this good the search ends."""
MAX_PROGRAMS = 300
"""Linear programs that are solved: a count, not a time, so that plans repeat."""
CUT_ROUNDS = 2
"""For a box, in each of which its solution is cut off."""
PLACED_EVERY = 2
"""Of the boxes that are taken apart, one is made a plan of."""


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """A box of plans, of which search, and what bounds it."""

    search: int
    box: Box
    solution: Solution

    @property
    def bound_ms(self) -> float:
        return self.solution.bound_ms


class Tree:
    """What is left of the plans of some searches.

    Attributes:
      best_ms: of the plans that were made.
    """

    def __init__(self, programs: Sequence[Program], limit_bytes: float):
        """
        Args:
          programs: one of each search.
          limit_bytes: of memory on a device, infinite for none.
        """
        self.programs, self.limit_bytes = programs, limit_bytes
        self.best_ms = np.inf
        self._cuts = list(map(Cuts, programs))
        self._solved = 0
        self._closed_ms = np.inf
        self._open: list[tuple[float, int, Node]] = []
        self._number = itertools.count()
        for search, program in enumerate(programs):
            self._push(self._node(search, program.whole_box(), 0.0))

    @property
    def bound_ms(self) -> float:
        """No plan takes less; infinite if none is possible."""
        open_ms = self._open[0][0] if self._open else np.inf
        return min(open_ms, self._closed_ms)

    def explore(self, place: Callable[[Node], float]) -> None:
        """Until a plan is good, or enough programs are solved.

        Args:
          place: makes a plan of a node's solution; returns its ms, infinite if it does
            not fit.
        """
        for number in itertools.count():
            if not self._open or self._solved >= MAX_PROGRAMS:
                return
            bound_ms, _, node = heapq.heappop(self._open)
            if number % PLACED_EVERY == 0:
                self.best_ms = min(self.best_ms, place(node))
            halves = self._halves(node)
            if halves is None:
                self.best_ms = min(self.best_ms, place(node))
                self._closed_ms = min(self._closed_ms, bound_ms)
            for half in halves or ():
                self._push(self._cut(half))
            if self.is_good(self.bound_ms):
                return

    def _push(self, node: Node | None) -> None:
        if node is not None:
            heapq.heappush(self._open, (node.bound_ms, next(self._number), node))

    def _node(self, search: int, box: Box, least_ms: float) -> Node | None:
        """The box with what bounds it; None if no plan is in it.

        Args:
          least_ms: that a larger box takes.
        """
        self._solved += 1
        solution = solve(self.programs[search], box, self.limit_bytes)
        if solution is None:
            return None
        bound_ms = max(solution.bound_ms, least_ms)
        return Node(search, box, dataclasses.replace(solution, bound_ms=bound_ms))

    def _cut(self, node: Node | None) -> Node | None:
        """The same box with cuts, as far as that may help."""
        for _ in range(CUT_ROUNDS):
            if node is None or self.is_good(node.bound_ms):
                break
            new = self._cuts[node.search].new(node.box, node.solution)
            if not new:
                break
            box = dataclasses.replace(node.box, cuts=node.box.cuts + new)
            node = self._node(node.search, box, node.bound_ms)
        return node

    def _halves(self, node: Node) -> list[Node] | None:
        """The two of the best split, those with plans in them; of the same box, if only
        more cuts help; None if it can't be taken apart."""
        box, bound_ms = self._without_dear(node), node.bound_ms
        least_ms, most_ms = 1e-6 * bound_ms, self._rise_ms(None, bound_ms)
        begun = []
        for first_box, second_box in splits(
            self.programs[node.search], box, node.solution
        ):
            first = self._node(node.search, first_box, bound_ms)
            rise_ms = max(self._rise_ms(first, bound_ms), least_ms)
            begun.append((rise_ms, first, second_box))
        best, best_gain = None, 0.0
        for rise_ms, first, second_box in sorted(begun, key=lambda each: -each[0]):
            if rise_ms * most_ms <= best_gain:
                break  # nor is any that follows a better split
            second = self._node(node.search, second_box, bound_ms)
            gain = rise_ms * max(self._rise_ms(second, bound_ms), least_ms)
            if gain > best_gain:
                best, best_gain = [first, second], gain
        if best is None:
            cut = self._cut(node)
            return None if cut is node else [cut] if cut is not None else []
        return [half for half in best if half is not None]

    def _rise_ms(self, half: Node | None, bound_ms: float) -> float:
        """Of the bound, as far as it matters."""
        good_ms = self.best_ms / GOOD
        if half is None or self.is_good(half.bound_ms):
            return min(good_ms, 2 * bound_ms) - bound_ms
        return half.bound_ms - bound_ms

    def is_good(self, bound_ms: float) -> bool:
        """Whether the best plan is good beside plans with this bound."""
        return self.best_ms <= GOOD * bound_ms

    def _without_dear(self, node: Node) -> Box:
        """The box without candidates beside whose plans the best is good."""
        with_ms = node.bound_ms + node.solution.above_ms
        dear = node.box.live & (self.best_ms <= GOOD * with_ms)
        self._closed_ms = min(self._closed_ms, with_ms[dear].min(initial=np.inf))
        return dataclasses.replace(node.box, live=node.box.live & ~dear)
