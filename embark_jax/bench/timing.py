"""The one loop that times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax


def median_s(call: Callable[[], Any], rounds: int, warm_ups: int = 1) -> float:
    """Returns the median time of a call, until all arrays that it returns are there.

    Args:
      call: what is timed.
      rounds: number of timed calls.
      warm_ups: number of calls before them; the first may compile.
    """
    times = []
    for _ in range(warm_ups + rounds):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return statistics.median(times[warm_ups:])
