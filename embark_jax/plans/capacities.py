"""The sizes of a plan's buffers: of exchanges, of updated rows, and of the events of
sequences.

Buffers are static. A capacity is the number of ids that the statistics expect for the
fullest pair of devices, or of rows or events for the fullest device, with slack. A
batch that needs more is not applied but replayed with larger buffers, so that a
capacity affects speed, never correctness.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from embark_jax.plans.placement import StorageKind

LENGTH_DEVIATIONS = 3.0
"""Standard deviations of the sum of a device's lengths, if lengths varied as much as
they can, that are kept above its expectation. Of lengths that vary half as much these
are twice as many."""
DEVIATIONS = 6.0
"""Standard deviations of a sum of independent draws that are kept above its
expectation; draws exceed that once in 1e9."""


def events_of(feature: str) -> str:
    """Returns the name of a sequence's capacity."""
    return f"events of {feature}"


def rows_of(storage: str) -> str:
    """Returns the name of the capacity of the rows that a device updates there."""
    return f"rows of {storage}"


def of_storage(storage: StorageKind) -> list[str]:
    """Returns the names of a storage's capacities: of ids, which its name is, unless it
    is replicated, and of updated rows, unless it is cached: there each slot may be."""
    ids = [storage.name] * (not storage.of_cluster.replicated)
    return ids + [rows_of(storage.name)] * (storage.tier == "device")


def capacity_of(certain: Any, expected: Any, slack: float) -> np.ndarray:
    """Returns the capacity for these ids or rows. Slack is for wrong statistics;
    where it is less than chance may need, chance decides."""
    chance = expected + DEVIATIONS * np.sqrt(expected)
    return np.ceil(certain + np.maximum(slack * expected, chance))


def events_capacity(samples: int, mean: float, longest: int) -> int:
    """Returns the events that there is room for where a device has these samples: the
    expectation, and what chance may add to it, whatever the lengths are that have this
    mean. No lengths vary more than those of which each is 0 or the longest."""
    variance = samples * mean * max(0.0, longest - mean)
    expected = samples * mean + LENGTH_DEVIATIONS * math.sqrt(variance)
    return max(1, min(samples * longest, math.ceil(expected)))


def events_of_cut(events: int, samples: int, longest: int, cuts: int) -> int:
    """Returns the events that a cut of a device's samples has room for.

    Args:
      events: those that a device has room for.
      samples: samples of a cut.
      longest: largest number of events of a sample.
      cuts: number of cuts among which samples are dealt evenly; see ``train.cuts``.
    """
    dealt = -(-events // cuts) + longest if cuts > 1 else events
    return min(events, samples * longest, dealt)


def grow(capacity: Mapping[str, int], needed: Mapping[str, int]) -> dict[str, int]:
    """Returns capacities that hold what a batch needed. One that overflowed grows by at
    least half, so that few recompilations follow."""
    return {
        name: have
        if needed[name] <= have
        else max(needed[name] * 5 // 4, have * 3 // 2)
        for name, have in capacity.items()
    }
