"""Local search: tables are placed anew, in the shape that suits all others best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from embark_jax.planner.candidates import Candidate
from embark_jax.planner.menu import Menu
from embark_jax.planner.placing import Placing

LOW_POWERS, HIGH_POWERS = (4, 8, 16), (32, 64, 128, 256)
"""Of smooth costs, one after the other: low ones see what all loads add up to, and let
tables leave a shape that is good only beside its neighbours; the last is within
128 ** (1 / 256) = 2 % of the step on 128 devices."""
PASSES = 2
"""Over all tables, with each power."""
FAILURES = 2
"""Of alike tables in a pass, after which the others are not tried."""
MOST_CANDIDATES = 8
"""Of a table that are tried."""
LEAST_GAIN = 1e-5
"""Share of the cost that a change must save."""
DEARER, CHEAPER = 2.0, 0.5
"""Times the price of memory, after a pass that ends above its limit, or below."""


def polish(
    placing: Placing,
    menus: Sequence[Menu],
    movable: Sequence[bool],
    limit_bytes: float = np.inf,
    powers: Sequence[int] = LOW_POWERS + HIGH_POWERS,
) -> None:
    """Places one table at a time anew, while that helps the smooth cost, with higher
    and higher powers. The best of all plans on the way is kept: of those within the
    limit of memory the fastest, or else the smallest. Memory gets dearer while they are
    above it. Every call goes another way.

    Args:
      placing: tables with their owners; changed in place.
      menus: of each table; alike tables have the same.
      movable: whether the shards of each table may move.
      limit_bytes: of memory on a device.
      powers: of the smooth costs.
    """
    ms_per_byte = placing.ms_per_byte
    best, best_rank = placing.entries(), rank(placing, limit_bytes)
    for power in powers:
        few = {menu: _promising(placing, menu) for menu in dict.fromkeys(menus)}
        for _ in range(PASSES):
            changed = _improve(placing, [few[menu] for menu in menus], movable, power)
            if (now := rank(placing, limit_bytes)) < best_rank:
                best, best_rank = placing.entries(), now
            fits = placing.ledger.bytes() <= limit_bytes
            placing.set_price(placing.ms_per_byte * (CHEAPER if fits else DEARER))
            if not changed:
                break
    placing.enter(best)
    placing.set_price(ms_per_byte)


def close_storages(
    placing: Placing,
    menus: Sequence[Menu],
    movable: Sequence[bool],
    limit_bytes: float = np.inf,
    most: int | None = None,
) -> None:
    """Places all tables of a storage in others, where that makes a better plan: none
    would go alone while the others stay. Arguments as for ``polish``, and ``most``
    tables that are placed so, None for all."""
    for s in range(len(placing.ledger.storages)):
        if most is not None and placing.ledger.tables[s] > most:
            continue
        best, best_rank = placing.entries(), rank(placing, limit_bytes)
        if _close(placing, menus, movable, s):
            better = rank(placing, limit_bytes) < best_rank
            placing.enter(placing.entries() if better else best)


def _close(
    placing: Placing, menus: Sequence[Menu], movable: Sequence[bool], s: int
) -> bool:
    """Places all tables of a storage in others; whether that is possible."""
    inside = [
        i for i, c in enumerate(placing.candidates) if placing.ledger.index(c) == s
    ]
    if not inside or not all(movable[i] for i in inside):
        return False
    others = {menus[i]: np.flatnonzero(menus[i].storages != s) for i in inside}
    if not all(map(len, others.values())):
        return False
    left = {menu: menu.only(chosen) for menu, chosen in others.items()}
    for i in inside:
        placing.take(i)
    for i in inside:
        placing.put(i, *placing.offer(left[menus[i]], HIGH_POWERS[-1]).best())
    return True


def rank(placing: Placing, limit_bytes: float) -> tuple[float, float]:
    """Of plans: the lower, the better."""
    excess_bytes = max(0.0, placing.ledger.bytes() - limit_bytes)
    return excess_bytes, placing.ledger.step_ms()


def _promising(placing: Placing, menu: Menu) -> Menu:
    """The candidates that cost least, with shards as they go or not."""
    order = np.argsort(placing.least_costs(menu), kind="stable")
    return menu.only(np.sort(order[:MOST_CANDIDATES]))


def _improve(
    placing: Placing, menus: Sequence[Menu], movable: Sequence[bool], power: int
) -> bool:
    """Places every table anew, if that saves smooth cost; whether any did."""
    changed = False
    failures: Counter[tuple[Menu, Candidate]] = Counter()
    cost = placing.smooth_cost(power)
    for i in placing.dice.permutation(np.flatnonzero(movable)):
        candidate, owners, menu = placing.candidates[i], placing.owners[i], menus[i]
        alike = menu, candidate
        if failures[alike] >= FAILURES:
            continue
        placing.take(i)
        without = placing.smooth_cost(power)
        offer = placing.offer(menu, power)
        offered = without + offer.costs.min()
        if offered < (1 - LEAST_GAIN) * cost:
            candidate, owners = offer.best()
            cost, changed = offered, True
        else:
            failures[alike] += 1
        placing.put(i, candidate, owners)
    return changed
