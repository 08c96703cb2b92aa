"""How large the exchange buffers of a plan are.

Buffers are static. A capacity is what the statistics expect for the fullest pair of
devices, with slack; a batch that needs more is not applied but replayed with larger
buffers, so that a capacity is a matter of speed, never of correctness.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

DEVIATIONS = 6.0
"""Standard deviations, of a sum of independent draws, kept above the expectation: as
seldom exceeded as once in 1e9 draws."""


def capacity_of(certain: np.ndarray, expected: np.ndarray, slack: float) -> np.ndarray:
    """The capacity for so many ids: the slack is for wrong statistics, and where it is
    less than chance may need, chance decides."""
    chance = expected + DEVIATIONS * np.sqrt(expected)
    return np.ceil(certain + np.maximum(slack * expected, chance))


def grow(capacity: Mapping[str, int], needed: Mapping[str, int]) -> dict[str, int]:
    """Capacities that hold what a batch needed, with room so that few recompilations
    follow: at least half as much again as before where one overflowed."""
    return {
        name: have
        if needed[name] <= have
        else max(needed[name] * 5 // 4, have * 3 // 2)
        for name, have in capacity.items()
    }
