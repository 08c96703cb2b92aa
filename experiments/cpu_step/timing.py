"""How both sides time, and whether others used the machine. Needs no package."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence

ROUNDS, WARM_UP = 7, 1


def median_ms(function: Callable, batches: Sequence, wait: Callable = lambda _: None):
    """Milliseconds a batch: the median of rounds over all batches, after a warm-up.

    Args:
      function: called with each batch in turn.
      batches: of a round.
      wait: called with a round's results, to wait for what is still under way.
    """
    rounds = []
    for _ in range(WARM_UP + ROUNDS):
        start = time.perf_counter()
        wait([function(batch) for batch in batches])
        rounds.append((time.perf_counter() - start) / len(batches))
    return 1e3 * statistics.median(rounds[WARM_UP:])


class OtherCores:
    """Cores that other processes kept busy, on average, since this was made; Linux."""

    def __init__(self):
        self._start = _clocks()

    def read(self) -> float:
        wall, machine, own = (
            now - then for now, then in zip(_clocks(), self._start, strict=True)
        )
        return round((machine - own) / wall, 3)


def _clocks() -> tuple[float, float, float]:
    """Seconds: wall, CPU of the whole machine, CPU of this process."""
    with open("/proc/stat") as stat:
        ticks = [int(value) for value in stat.readline().split()[1:9]]
    idle = ticks[3] + ticks[4]
    machine = (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK")
    return time.perf_counter(), machine, time.process_time()
