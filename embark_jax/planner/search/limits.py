"""Plans under several limits of memory, so that more of it never makes a plan slower.

A search with less memory may chance on a faster plan. So whatever limit is asked for,
the device's whole memory is searched, certain shares of it below, and the limit: what
is searched for one share is searched for every larger one, and the fastest plan that
fits is taken. A share is left out if the plan of the whole memory fits into it; models
of many tables are searched once.
"""

from __future__ import annotations

import contextlib

from embark_jax.planner.cost.memory import Memory
from embark_jax.planner.search.instance import Request
from embark_jax.planner.search.params import MEMORY_SHARES, SEARCHED_TABLES
from embark_jax.planner.search.solve import DoesNotFitError, SearchResult, solve


def solve_within(asked: Request) -> list[SearchResult]:
    """Returns the plans within the limit of a request that are faster than every one
    of less memory, the fastest first.

    Raises:
      ValueError: if the request is inconsistent.
      DoesNotFitError: if the tables do not fit.
    """

    def found(limit_bytes: float | None) -> SearchResult:
        memory_gb = limit_bytes and limit_bytes / 1e9
        return solve(asked.under("", memory_gb=memory_gb).instance())

    limit_bytes = Memory(asked.workload).limit_bytes
    if asked.workload.fleet.placeholders:  # the memory of their devices says nothing
        return [found(limit_bytes)]
    device_bytes = Memory(asked.under("", memory_gb=None).workload).limit_bytes
    if limit_bytes < device_bytes:  # says at once how far it is short of this limit
        solve(asked.instance(), quick=True)
    whole = found(None)
    results = [whole]
    if whole.assignment.bytes() > limit_bytes:
        results = [found(limit_bytes)]
    bound_ms = max(result.bound_ms for result in (whole, *results))
    few = len(asked.tables) <= SEARCHED_TABLES
    for share in MEMORY_SHARES if few else ():
        share_bytes = share * device_bytes
        if share_bytes < min(limit_bytes, whole.assignment.bytes()):
            with contextlib.suppress(DoesNotFitError):
                results.append(found(share_bytes))
    results.sort(key=lambda result: result.step_ms)
    return [
        result._replace(bound_ms=bound_ms)
        for i, result in enumerate(results)
        if all(r.assignment.bytes() > result.assignment.bytes() for r in results[:i])
    ]
