"""Local search: tables are placed anew, in the shape that suits all others best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from embark_jax.planner.candidates import Candidate
from embark_jax.planner.exchanges import exchange_shards
from embark_jax.planner.menu import Menu
from embark_jax.planner.placing import Placing

POWERS = (4, 8, 16, 32, 64, 128, 256)
"""Of smooth costs, one after the other: low ones see what all loads add up to, and let
tables leave a shape that is good only beside its neighbours; the last is within
128 ** (1 / 256) = 2 % of the step on 128 devices."""
PASSES = 2
"""Over all tables, with each power."""
FAILURES = 2
"""Of alike tables in a pass, after which the others are not tried."""
MOST_CANDIDATES = 12
"""Of a table that are tried."""
LEAST_GAIN = 1e-5
"""Share of the cost that a change must save."""
DEARER, CHEAPER = 2.0, 0.5
"""Times the price of memory, after a pass that ends above its limit, or below."""


def polish(
    placing: Placing,
    options: Sequence[Sequence[Candidate]],
    movable: Sequence[bool],
    limit_bytes: float = np.inf,
    powers: Sequence[int] = POWERS,
    exchanges: bool = True,
) -> None:
    """Places one table at a time anew, while that helps the smooth cost, with higher
    and higher powers; then all of a storage at once; then exchanges shards. The best of
    all plans on the way is kept: of those within the limit of memory the fastest, or
    else the smallest. Memory gets dearer while they are above it. Every call goes
    another way.

    Args:
      placing: tables with their owners; changed in place.
      options: the candidates of each table; alike tables have the same list.
      movable: whether the shards of each table may move.
      limit_bytes: of memory on a device.
      powers: of the smooth costs.
      exchanges: whether to exchange shards; that takes long where sizes are many.
    """
    distinct = {id(each): each for each in options}
    menus = {key: Menu(each, placing.ledger) for key, each in distinct.items()}
    ms_per_byte = placing.ms_per_byte
    best, best_rank = placing.entries(), rank(placing, limit_bytes)

    def keep() -> None:
        nonlocal best, best_rank
        if (now := rank(placing, limit_bytes)) < best_rank:
            best, best_rank = placing.entries(), now

    for power in powers:
        few = {key: _promising(placing, menu) for key, menu in menus.items()}
        for _ in range(PASSES):
            changed = _improve(placing, [few[id(o)] for o in options], movable, power)
            keep()
            fits = placing.ledger.bytes() <= limit_bytes
            placing.set_price(placing.ms_per_byte * (CHEAPER if fits else DEARER))
            if not changed:
                break
    for s in range(len(placing.ledger.storages)):
        placing.enter(best)
        if _close(placing, [menus[id(o)] for o in options], movable, s):
            keep()
    placing.enter(best)
    if exchanges:
        exchange_shards(placing, movable)
        keep()
        placing.enter(best)
    placing.set_price(ms_per_byte)


def _close(
    placing: Placing, menus: Sequence[Menu], movable: Sequence[bool], s: int
) -> bool:
    """Places all tables of a storage in others, as no table can alone where each costs
    little beside the storage; whether that is possible."""
    inside = [
        i for i, c in enumerate(placing.candidates) if placing.ledger.index(c) == s
    ]
    if not inside or not all(movable[i] for i in inside):
        return False
    others = {}
    for i in inside:
        left = np.flatnonzero(menus[i].storages != s)
        if not len(left):
            return False
        others[id(menus[i])] = menus[i].only(left)
    for i in inside:
        placing.take(i)
    for i in inside:
        menu = others[id(menus[i])]
        offer = placing.offer(menu, POWERS[-1])
        best = int(np.argmin(offer.costs))
        owners = offer.devices[best][menu.positions[best]]
        placing.put(i, menu.candidates[best], owners)
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
    failures: Counter[tuple[int, int]] = Counter()
    cost = placing.smooth_cost(power)
    for i in placing.dice.permutation(np.flatnonzero(movable)):
        candidate, owners, menu = placing.candidates[i], placing.owners[i], menus[i]
        alike = id(menu), id(candidate)
        if failures[alike] >= FAILURES:
            continue
        placing.take(i)
        without = placing.smooth_cost(power)
        offer = placing.offer(menu, power)
        best = int(np.argmin(offer.costs))
        if without + offer.costs[best] < (1 - LEAST_GAIN) * cost:
            candidate = menu.candidates[best]
            owners = offer.devices[best][menu.positions[best]]
            cost = without + offer.costs[best]
            changed = True
        else:
            failures[alike] += 1
        placing.put(i, candidate, owners)
    return changed
