"""Advice: what would help where tables do not fit, what would make a plan faster, and
what less memory would cost.

Everything that is named was tried: the plan's own placements are priced with other
formats, exchanges or look-ahead, or another batch; on other nodes, or with tables in
host memory, a short search plans anew, so that a whole one may find more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from embark_jax._base.memory import bytes_text
from embark_jax.planner.cost.memory import Memory
from embark_jax.planner.cost.pricing import price
from embark_jax.planner.request.workload import Workload
from embark_jax.planner.search import params
from embark_jax.planner.search.assignment import Assignment
from embark_jax.planner.search.instance import Request
from embark_jax.planner.search.solve import SearchResult, solve
from embark_jax.plans.clusters import CLUSTERS
from embark_jax.plans.options import ExchangeName
from embark_jax.plans.placement import Placement
from embark_jax.plans.prediction import HARDLY_LONGER

HALVINGS = DOUBLINGS = 4
"""How often the batch is halved, and nodes are doubled, for tables that do not fit."""
NAMED = 3
"""Changes that are named."""
LEAST_GAIN = 0.02
"""Share of more samples a second from which on a change is worth a word."""
SHORT_OF_MEMORY = 0.5
"""Share of the memory limit from which on tables in host memory may make room."""
STAGED: ExchangeName = "hierarchical"


def _planned(requests: Sequence[Request]) -> Iterator[tuple[Request, SearchResult]]:
    """Yields what a short search finds for the requests that fit."""
    for request in requests:
        with contextlib.suppress(ValueError):
            yield request, solve(request.instance(), quick=True)


def what_helps(request: Request) -> str:
    """Says which changes make a request fit that does not, of each kind the smallest:
    tables in host memory, a smaller batch, or for who plans for a fleet more nodes; ""
    if none do."""
    fleet, samples = request.workload.fleet, request.workload.batch_size
    kinds: list[list[Request]] = []
    if here := request.on_devices():
        largest = max(here, key=lambda table: table.rows * table.dim)
        key = f"embedding.tables.{largest.name}.tier"
        one = request.elsewhere(f"{key}: auto", [largest])
        kinds.append([one, request.elsewhere(f"tier: auto, as in {key}, of all", here)])
    batches = [samples >> n for n in range(1, HALVINGS + 1)]
    kinds.append(
        [request.under(f"a batch of {n:,}", batch_size=n) for n in batches if n]
    )
    if not fleet.shared:
        nodes = [fleet.nodes << n for n in range(1, DOUBLINGS + 1)]
        kinds.append([request.on(f"{n} nodes", nodes=n) for n in nodes])
    texts = []
    for requests in kinds:
        for changed, found in _planned(requests):
            size = bytes_text(found.assignment.bytes())
            cost = f"{found.step_ms:.3f} ms a step, {size} a device"
            texts.append(f"{changed.change} ({cost})")
            break
    return f"; what would help: {', or '.join(texts)}" if texts else ""


def faster(best: Assignment, placements: Sequence[Placement], asked: Request) -> str:
    """Says which changes would bring most samples a second, the best first; "" if none
    bring many.

    Args:
      best: the plan.
      placements: its placements.
      asked: its request.
    """
    per_ms = asked.workload.batch_size / best.step_ms()
    gains = [
        (workload.batch_size / step_ms / per_ms - 1, change, step_ms)
        for change, workload, step_ms in (
            *_priced(placements, asked),
            *(
                (request.change, request.workload, found.step_ms)
                for request, found in _planned(_to_search(best, asked))
            ),
        )
    ]
    texts = [
        f"{change} ({step_ms:.3f} ms a step, {gain:+.0%} samples a second)"
        for gain, change, step_ms in sorted(gains, reverse=True)[:NAMED]
        if gain >= LEAST_GAIN
    ]
    return f"what would make it faster: {'; '.join(texts)}" if texts else ""


def _priced(
    placements: Sequence[Placement], asked: Request
) -> Iterator[tuple[str, Workload, float]]:
    """Yields changes with which the same placements fit, and what a step takes."""
    workload, fleet = asked.workload, asked.workload.fleet
    wire, twice = workload.wire, 2 * workload.batch_size
    same = [asked.under(f"train.batch_size={twice}", batch_size=twice)]
    for what in ("rows", "gradients"):
        if getattr(wire, what) == "float32" and workload.devices > 1:
            form = dataclasses.replace(wire, **{what: "bfloat16"})
            same.append(asked.under(f"embedding.wire.{what}=bfloat16", wire=form))
    if not (workload.overlap or fleet.shared):
        same.append(asked.under("overlap=True", overlap=True))
    tried = [(request.change, placements, request.workload) for request in same]
    if all(each.table.dtype == "float32" for each in placements):
        halved = [
            dataclasses.replace(
                each, table=dataclasses.replace(each.table, dtype="bfloat16")
            )
            for each in placements
        ]
        tried.append(("embedding.dtype=bfloat16", halved, workload))
    if min(fleet.nodes, fleet.gpus_per_node) > 1:
        staged = [
            dataclasses.replace(each, exchange=STAGED)
            if STAGED in CLUSTERS[each.cluster].exchanges
            else each
            for each in placements
        ]
        key = f"embedding.tables.NAME.exchange={STAGED}"
        tried.append((key, staged, workload))
    for change, placed, other in tried:
        priced = price(placed, asked.features, other)
        if priced.objective.bytes(priced.loads) <= Memory(other).limit_bytes:
            yield change, other, priced.step_ms


def _to_search(best: Assignment, asked: Request) -> list[Request]:
    """Returns changes for which a short search finds plans."""
    nodes, here = asked.workload.fleet.nodes, asked.on_devices()
    requests = [asked.on(f"mesh.nodes={2 * nodes}", nodes=2 * nodes)]
    if nodes > 1:
        requests.append(asked.on(f"mesh.nodes={nodes // 2}", nodes=nodes // 2))
    has_host = asked.workload.fleet.device.host_bytes_per_s is not None
    limit_bytes = SHORT_OF_MEMORY * Memory(asked.workload).limit_bytes
    few = len(asked.tables) <= params.SEARCHED_TABLES
    if here and has_host and few and best.bytes() > limit_bytes:
        requests.append(asked.elsewhere("embedding.tables.NAME.tier=auto", here))
    return requests


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
        f"a step {max(0.0, longer_ms / step_ms - 1):.1%} longer would save "
        f"{1 - least_bytes / most_bytes:.0%} of the memory: {gb:.1f} GB a device "
        f"(embedding.memory_gb={math.ceil(10 * gb) / 10})"
    )
