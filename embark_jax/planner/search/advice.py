"""Advice on a plan: what would make it faster, and what less memory would cost.

Everything that is named was tried: the plan's own placements are priced with other
formats, with look-ahead or another batch; on other nodes, or with tables in host
memory, a short search plans anew, so that a whole one may find more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from embark_jax.planner.cost.memory import Memory
from embark_jax.planner.cost.pricing import price
from embark_jax.planner.request.checking import checked
from embark_jax.planner.request.workload import Workload
from embark_jax.planner.search import params
from embark_jax.planner.search.assignment import Assignment
from embark_jax.planner.search.instance import Instance
from embark_jax.planner.search.solve import SearchResult, solve
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.prediction import HARDLY_LONGER
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec

Forced = Mapping[str, ForcedPlacement]
NAMED = 3
"""Changes that are named."""
LEAST_GAIN = 0.02
"""Share of more samples a second from which on a change is worth a word."""
SHORT_OF_MEMORY = 0.5
"""Share of the memory limit from which on tables in host memory may make room."""


class Change(NamedTuple):
    """A change of the request, and what a step takes with it."""

    name: str
    step_ms: float
    batch_size: int


def faster(
    best: Assignment,
    placements: Sequence[Placement],
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    workload: Workload,
    forced: Forced,
) -> list[str]:
    """Says which changes would bring most samples a second, the best first; nothing
    for fleets of which figures are placeholders.

    Args:
      best: the plan.
      placements: its placements.
      tables, features, workload, forced: its request.
    """
    if workload.fleet.placeholders:
        return []
    step_ms = best.step_ms()
    per_ms = workload.batch_size / step_ms
    changes = [
        *_priced(placements, features, workload),
        *_searched(best, tables, features, workload, forced),
    ]
    gains = [
        (change.batch_size / change.step_ms / per_ms - 1, change) for change in changes
    ]
    gains.sort(key=lambda each: -each[0])
    texts = [
        f"{change.name} ({change.step_ms:.3f} ms a step, {gain:+.0%} samples a second)"
        for gain, change in gains[:NAMED]
        if gain >= LEAST_GAIN
    ]
    return [f"what would make it faster: {'; '.join(texts)}"] if texts else []


def _priced(
    placements: Sequence[Placement], features: Sequence[FeatureSpec], workload: Workload
) -> Iterator[Change]:
    """Yields changes with which the same placements fit."""
    wire = workload.wire
    formats = {
        f"embedding.wire.{what}=bfloat16": dataclasses.replace(
            workload, wire=dataclasses.replace(wire, **{what: "bfloat16"})
        )
        for what in ("rows", "gradients")
        if getattr(wire, what) == "float32" and workload.devices > 1
    }
    twice = 2 * workload.batch_size
    others = formats | {
        f"train.batch_size={twice}": dataclasses.replace(workload, batch_size=twice)
    }
    if not (workload.overlap or workload.fleet.shared):
        others["overlap=True"] = dataclasses.replace(workload, overlap=True)
    requests = [(name, placements, other) for name, other in others.items()]
    if all(each.table.dtype == "float32" for each in placements):
        halved = [
            dataclasses.replace(
                each, table=dataclasses.replace(each.table, dtype="bfloat16")
            )
            for each in placements
        ]
        requests.append(("embedding.dtype=bfloat16", halved, workload))
    for name, placed, other in requests:
        priced = price(placed, features, other)
        if priced.objective.bytes(priced.loads) <= Memory(other).limit_bytes:
            yield Change(name, priced.step_ms, other.batch_size)


def _searched(
    best: Assignment,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    workload: Workload,
    forced: Forced,
) -> Iterator[Change]:
    """Yields changes for which a short search finds plans."""
    fleet, requests = workload.fleet, []
    twice = dataclasses.replace(fleet, nodes=2 * fleet.nodes)
    if workload.batch_size % twice.devices == 0:
        more = dataclasses.replace(workload, fleet=twice)
        requests.append((f"mesh.nodes={twice.nodes}", tables, more))
    limit_bytes = Memory(workload).limit_bytes
    here = [table for table in tables if not (table.cached or table.is_dynamic)]
    has_host = fleet.device.host_bytes_per_s is not None
    short = best.bytes() > SHORT_OF_MEMORY * limit_bytes
    if here and has_host and short and not best.instance.is_large:
        moved = [
            dataclasses.replace(table, tier="auto") if table in here else table
            for table in tables
        ]
        requests.append(("embedding.tables.NAME.tier=auto", moved, workload))
    for name, others, load in requests:
        with contextlib.suppress(ValueError):
            grown, fixed = checked(others, features, forced, load)
            found = solve(Instance(grown, features, fixed, load), quick=True)
            yield Change(name, found.assignment.step_ms(), load.batch_size)


def lighter(found: SearchResult) -> Assignment | None:
    """Returns the assignment of least memory that moves from the best one lead to, and
    that takes hardly longer; None if it saves hardly any."""
    best = found.assignment
    step_ms, most_bytes = best.step_ms(), best.bytes()

    def rank(assignment: Assignment) -> tuple[float, float]:
        late_ms = assignment.step_ms() - (1 + HARDLY_LONGER) * step_ms
        return max(0.0, late_ms), assignment.bytes()

    price = params.LIGHTER_PRICE * step_ms / most_bytes
    light = found.search.improve(best.copy(), np.random.default_rng(0), price, rank)
    saves = light.bytes() <= (1 - params.LIGHTER_MEMORY) * most_bytes
    return light if saves and light.fits() else None


def knee(by_memory: Sequence[tuple[float, float]]) -> str:
    """Says what the plan of least memory costs whose step is hardly longer; "" if it
    saves hardly any.

    Args:
      by_memory: bytes of a device and ms of plans, the fastest first.
    """
    most_bytes, step_ms = by_memory[0]
    hardly = [each for each in by_memory if each[1] <= (1 + HARDLY_LONGER) * step_ms]
    least_bytes, longer_ms = min(hardly)
    if least_bytes > (1 - params.LIGHTER_MEMORY) * most_bytes:
        return ""
    gb = least_bytes / 1e9
    return (
        f"a step {longer_ms / step_ms - 1:.1%} longer would save "
        f"{1 - least_bytes / most_bytes:.0%} of the memory: {gb:.1f} GB a device "
        f"(embedding.memory_gb={math.ceil(10 * gb) / 10})"
    )
