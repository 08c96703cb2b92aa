"""Plans under several limits of memory, so that more of it never makes a plan slower.

A search with less memory may chance on a faster plan. So whatever limit is asked for,
the device's whole memory is searched, certain shares of it below, and the limit: what
is searched for one share is searched for every larger one, and the fastest plan that
fits is taken. A share is left out if the plan of the whole memory fits into it; models
of many tables are searched once.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence

from embark_jax.planner.cost.memory import Memory
from embark_jax.planner.request.workload import Workload
from embark_jax.planner.search.instance import Instance
from embark_jax.planner.search.params import MEMORY_SHARES, SEARCHED_TABLES
from embark_jax.planner.search.solve import DoesNotFitError, SearchResult, solve
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.tables import FeatureSpec, TableSpec


def solve_within(
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    forced: Mapping[str, ForcedPlacement],
    workload: Workload,
) -> list[SearchResult]:
    """Returns the plans within the limit of a workload that are faster than every one
    of less memory, the fastest first.

    Raises:
      DoesNotFitError: if the tables do not fit.
    """

    def found(limit_bytes: float) -> SearchResult:
        limited = dataclasses.replace(workload, memory_gb=limit_bytes / 1e9)
        return solve(Instance(tables, features, forced, limited))

    limit_bytes = Memory(workload).limit_bytes
    if workload.fleet.placeholders:  # the memory of their devices says nothing
        return [found(limit_bytes)]
    unlimited = dataclasses.replace(workload, memory_gb=None)
    instance = Instance(tables, features, forced, unlimited)
    device_bytes = instance.memory.limit_bytes
    if limit_bytes < device_bytes:  # says at once how far it is short of this limit
        solve(Instance(tables, features, forced, workload), quick=True)
    whole = solve(instance)
    results = [whole]
    if whole.assignment.bytes() > limit_bytes:
        results = [found(limit_bytes)]
    bound_ms = max(result.bound_ms for result in (whole, *results))
    for share in MEMORY_SHARES if len(tables) <= SEARCHED_TABLES else ():
        share_bytes = share * device_bytes
        if share_bytes < min(limit_bytes, whole.assignment.bytes()):
            with contextlib.suppress(DoesNotFitError):
                results.append(found(share_bytes))
    results.sort(key=lambda result: result.assignment.step_ms())
    faster = [
        result._replace(bound_ms=bound_ms)
        for i, result in enumerate(results)
        if all(r.assignment.bytes() > result.assignment.bytes() for r in results[:i])
    ]
    return faster
