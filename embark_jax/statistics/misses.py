"""Misses of a cache: the rows of a batch that are not in the slots of their table.

All ids are drawn independently, so that a row's turn depends on its frequency alone.
With ``U(n)`` unique rows among n ids, slots hold the rows of the last ``U(n) = slots``
ids if rows leave that were asked for longest ago (Che's approximation,
https://doi.org/10.1109/JSAC.2002.801752): a batch of b ids then misses ``U(n + b) -
U(n)`` rows. If rows leave that were asked for by the fewest batches, slots hold in the
long run the most frequent rows, and beside them the other rows of the last batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from embark_jax.plans.options import Evict
from embark_jax.statistics.skew import Skew

MOST_DRAWS = 1e30
"""Number of ids among which all rows occur that ever do."""
TOLERANCE = 1e-4
"""Largest error of a number of ids, as a share."""
ROUNDS = 3
"""Rounds in which the number of most frequent rows that keep their slots is found."""


@functools.lru_cache(maxsize=65536)
def missed_rows(
    skew: Skew, rows: int, slots: int, batch_ids: float, evict: Evict = "lru"
) -> float:
    """Returns the unique rows to expect among the ids of a batch that have no slot when
    the batch comes, once all slots are filled.

    Args:
      skew: distribution of the ids over the rows.
      rows: rows of the table.
      slots: slots of the table.
      batch_ids: ids of a batch.
      evict: rows that leave slots first.
    """
    if slots >= rows:
        return 0.0
    if evict == "lru":

        def unique(draws: float) -> float:
            return skew.expected_unique(rows, draws)

        past = _crossing(lambda draws: unique(draws) - slots, 1e-3, MOST_DRAWS)
        return unique(past + batch_ids) - unique(past)

    def unique_colder(kept: int, batches: int) -> float:
        ids = batches * batch_ids * skew.share(rows, kept, rows, by_rank=True)
        colder = skew.within(rows, kept, rows, by_rank=True)
        return colder.expected_unique(rows - kept, ids)

    kept = slots
    for _ in range(ROUNDS):
        kept = max(0, slots - round(unique_colder(kept, 1)))
    return unique_colder(kept, 2) - unique_colder(kept, 1)


def _crossing(value: Callable[[float], float], low: float, high: float) -> float:
    """Returns where a growing function of a positive number crosses zero."""
    while high > low * (1 + TOLERANCE):
        middle = (low * high) ** 0.5
        if value(middle) < 0:
            low = middle
        else:
            high = middle
    return low
