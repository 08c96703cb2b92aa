"""Misses of a cache: the rows of a batch that are not in the slots of their table.

All ids are drawn independently, so that a row's use depends on its frequency alone.
Where rows leave slots that were asked for longest ago ("lru"), slots hold the rows of
the last n ids, as many as have so many unique rows (Che's approximation,
https://doi.org/10.1109/JSAC.2002.801752). Where those leave that the fewest batches
asked for ("lfu"), a row that came early has been counted often and stays, and one that
comes late leaves with the next batch. So slots hold the rows that n ids ask for a few
times, and beside them the others of the last batch; n is again what fills the slots.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from embark_jax.plans.options import Evict
from embark_jax.statistics.skew import Skew

TIMES: dict[Evict, int] = {"lru": 1, "lfu": 4}
"""How often ids must have asked for a row that stays. That of "lfu" is fitted to
replays of 4,000 batches: docs/pages/results.md."""
POINTS = 48
"""Points of a curve of misses over slots."""
LONGEST = 40.0
"""Times that ids ask for the rarest row at the last point."""


def missed_rows(
    skew: Skew, rows: int, slots: int, batch_ids: float, evict: Evict = "lru"
) -> float:
    """Returns the unique rows to expect among the ids of a batch that have no slot when
    the batch comes, once all slots are full.

    Args:
      skew: distribution of the ids over the rows.
      rows: rows of the table.
      slots: slots of the table.
      batch_ids: ids of a batch.
      evict: rows that leave slots first.
    """
    if slots >= rows or not batch_ids:
        return 0.0
    filled, missed = _curve(skew, rows, batch_ids, evict)
    return float(np.interp(math.log(slots), filled, missed))


@functools.lru_cache(maxsize=4096)
def _curve(
    skew: Skew, rows: int, batch_ids: float, evict: Evict
) -> tuple[np.ndarray, np.ndarray]:
    """Returns ``[POINTS]`` logarithms of slots, ascending, and misses."""
    probability, count = skew.probabilities(rows)
    rarest = probability[probability > 0].min()
    first = batch_ids / 10
    ids = np.geomspace(first, max(2 * first, LONGEST / rarest), POINTS)
    returning = -np.expm1(-batch_ids * probability)
    rates = ids[:, None] * probability
    term = np.exp(-rates)
    leaves = term.copy()
    for times in range(1, TIMES[evict]):
        term *= rates / times
        leaves += term
    others = leaves * returning
    filled = (1 - leaves) @ count
    if evict == "lfu":
        filled += others @ count
        others = others * (1 - returning)
    return np.log(np.maximum(filled, 1e-9)), others @ count
