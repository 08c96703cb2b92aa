"""The search for a plan: chooses a shape for every table, an owner for every shard.

The choice of shapes is that of a linear program (``lines``), in which shards have no
place yet; it also bounds what any plan can reach. Greedy placing and local search then
give shards their owners and mend the choice where it packs badly. Branch and bound
(``tree``) makes ever closer choices of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from embark_jax.planner.lines import least_bytes, solve
from embark_jax.planner.placing import Placing
from embark_jax.planner.plan import MAX_SLOTS
from embark_jax.planner.polish import LOW_POWERS, rank
from embark_jax.planner.search import Search
from embark_jax.planner.tree import Node, Tree

BEHIND = 2 / 3
"""Share of plans, those that cost most when they are placed, that are not improved."""


class Found(NamedTuple):
    """A plan.

    Attributes:
      search: whose it is.
      placing: what it is.
      step_ms: about, with devices levelled.
    """

    search: Search
    placing: Placing
    step_ms: float

    @classmethod
    def of(cls, search: Search, placing: Placing) -> Found:
        return cls(search, placing, search.levelling.step_ms(placing))

    @property
    def fits(self) -> bool:
        return self.search.fits(self.placing)

    def rank(self, limit_bytes: float) -> tuple[float, float]:
        """Of plans: the lower, the better."""
        excess_bytes, _ = rank(self.placing, limit_bytes)
        return excess_bytes, self.step_ms


def best_plan(searches: Sequence[Search]) -> tuple[Search, Placing, float]:
    """The best plan of some searches for one request, whose it is, and the lower bound
    in ms of the plans of all.

    Raises:
      ValueError: if the tables do not fit.
    """
    limit_bytes = searches[0].empty.limit_bytes
    found: list[Found] = []
    bound_ms = 0.0
    if _is_roomy(searches):
        # As if memory were no matter: more of it then changes no plan that fits.
        found, bound_ms = _explore(searches, np.inf)
    if not found or not _best(found).fits:
        limited, limited_ms = _explore(searches, limit_bytes)
        found, bound_ms = found + limited, max(bound_ms, limited_ms)
        if np.isfinite(limited_ms):
            found += _with_less_memory(searches)
    fitting = [each for each in found if each.fits]
    if fitting:
        search, placing, _ = _best(fitting)
        search.levelling.level(placing)
        return search, placing, bound_ms
    needed_bytes = min(least_bytes(search.program) for search in searches)
    if np.isfinite(bound_ms):
        needed_bytes = min(each.placing.ledger.bytes() for each in found)
    if needed_bytes <= searches[0].empty.limit_bytes:
        raise ValueError(
            f"a storage needs more than {MAX_SLOTS:,} slots on a device; what would "
            "help: more devices, or tables of different dims"
        )
    raise ValueError(searches[0].shortage(needed_bytes))


def _explore(
    searches: Sequence[Search], limit_bytes: float
) -> tuple[list[Found], float]:
    """Plans, of which some may need more memory, and the lower bound in ms; infinite,
    if nothing fits."""
    tree = Tree([search.program for search in searches], limit_bytes)
    found: list[Found] = []
    known: set[tuple[int, bytes]] = set()
    costs: list[float] = []

    def place(node: Node) -> float:
        search = searches[node.search]
        choice = node.search, np.round(node.solution.tables, 6).tobytes()
        if choice in known:
            return np.inf
        known.add(choice)
        placing = search.place(node.solution, limit_bytes, len(found))
        costs.append(placing.smooth_cost(LOW_POWERS[-1]))
        # Where memory is limited, costs say little: it has another price each time.
        if np.isfinite(limit_bytes) or costs[-1] <= np.quantile(costs, 1 - BEHIND):
            search.improve(placing, limit_bytes)
        found.append(Found.of(search, placing))
        excess_bytes, step_ms = found[-1].rank(limit_bytes)
        return np.inf if excess_bytes else step_ms

    tree.explore(place)
    if not found:
        return found, np.inf
    best, *others = sorted(found, key=lambda each: each.rank(limit_bytes))
    return [_finished(best, limit_bytes), *others], tree.bound_ms


def _finished(found: Found, limit_bytes: float) -> Found:
    """Made no worse."""
    search, placing, _ = found
    before = placing.entries()
    search.finish(placing, limit_bytes)
    after = Found.of(search, placing)
    if after.rank(limit_bytes) <= found.rank(limit_bytes):
        return after
    placing.enter(before)
    return found


def _is_roomy(searches: Sequence[Search]) -> bool:
    """Whether a plan of the most promising search fits that is made as if memory were
    no matter."""
    choices = [solve(s.program, s.program.whole_box()) for s in searches]
    promising = [
        (choice.bound_ms, number, choice)
        for number, choice in enumerate(choices)
        if choice is not None
    ]
    if not promising:
        return False
    _, number, choice = min(promising)
    return searches[number].fits(searches[number].place(choice, np.inf, 0))


def _with_less_memory(searches: Sequence[Search]) -> Iterator[Found]:
    """Plans for ever less memory, two at least of each search, until one fits."""
    for search in searches:
        for number, limit_bytes in enumerate(search.limits_bytes()):
            choice = solve(search.program, search.program.whole_box(), limit_bytes)
            if choice is None:
                break
            placing = search.place(choice, limit_bytes, number)
            search.improve(placing, limit_bytes)
            yield Found.of(search, placing)
            if number > 0 and search.fits(placing):
                break


def _best(found: Sequence[Found]) -> Found:
    return min(found, key=lambda each: each.step_ms)
