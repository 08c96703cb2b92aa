"""Simulates train steps of EMBark's system: its baseline and its improvements."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from embark_jax.planner.cost.rates import Rates
from embark_jax.planner.request.workload import TableUse, table_uses
from embark_jax.plans.options import ClusterName
from embark_jax.plans.placement import Placement
from embark_jax.simulator import Simulation, Task, schedule, serial
from experiments.embark_table1.job import Job
from experiments.embark_table1.loads import count
from experiments.embark_table1.placements import (
    TABLE_BYTES,
    dp_order,
    embark,
    table_bytes,
    table_row_wise,
    thresholds,
    ub_order,
)
from experiments.embark_table1.step import EmbarkStep, Messages

WIDE_ROWS = 2**32
"""With a larger table, all ids of HugeCTR have 64 bits: its ``i64_input_key``."""


def key_bytes(job: Job) -> int:
    """Returns the number of bytes of an id in HugeCTR."""
    return 8 if any(table.rows > WIDE_ROWS for table in job.tables) else 4


def simulate_embark(
    system: str,
    job: Job,
    placements: Sequence[Placement],
    arrange: Callable[[Sequence[Task]], Sequence[Task]] = tuple,
) -> Simulation:
    """Simulates a step of EMBark's system.

    Args:
      system: its name in the result.
      job: what is trained.
      placements: placements of all tables.
      arrange: ``serial`` lets nothing overlap.
    """
    step = EmbarkStep(
        Messages(Rates(job.workload.fleet)),
        job.workload,
        count(placements, job.features, job.workload),
        key_bytes(job),
    )
    timeline = schedule(arrange(step.tasks()))
    return Simulation(system, job.workload.batch_size, timeline)


def simulate_ablation(job: Job) -> Iterator[Simulation]:
    """Simulates EMBark's baseline and its three improvements: kernels overlap, tables
    are sharded freely, tables choose a cluster. The last two keep the fastest
    placements so far.

    Args:
      job: what is trained.
    """
    placements = table_row_wise(job.tables, job.workload)
    yield simulate_embark("baseline", job, placements, serial)
    overlapped = simulate_embark("+ overlap", job, placements)
    yield overlapped
    reduced: list[ClusterName] = ["rb"] * len(job.tables)
    sharded = simulate_embark("", job, plan_embark(job, reduced))
    best = min(overlapped, sharded, key=step_ms)
    yield dataclasses.replace(best, system="+ sharding")
    clustered = simulate_embark("", job, plan_embark(job, best_clusters(job)))
    best = min(best, clustered, key=step_ms)
    yield dataclasses.replace(best, system="+ clusters")


def plan_embark(job: Job, clusters: Sequence[ClusterName]) -> list[Placement]:
    """Places a job's tables, each in a cluster, as EMBark does."""
    return embark(job.tables, job.features, job.workload, clusters)


def best_clusters(job: Job) -> list[ClusterName]:
    """Returns the clusters with which the step is shortest, of those that EMBark's two
    numbers allow: how many tables are in DP, and how many of the others in UB. Tables
    of the same shape stay together. EMBark sets the numbers by hand."""
    uses = table_uses(job.tables, job.features, job.workload)

    def time_ms(clusters: list[ClusterName]) -> float:
        return step_ms(simulate_embark("", job, plan_embark(job, clusters)))

    choices = [
        thresholds(uses, replicated, unique)
        for replicated in replicated_numbers(job, uses)
        for unique in unique_numbers(uses, replicated)
    ]
    return min(choices, key=time_ms)


def replicated_numbers(job: Job, uses: Sequence[TableUse]) -> list[int]:
    """Numbers of the smallest tables that take at most half of a GPU's room."""
    numbers = boundaries(dp_order(use) for use in uses)
    sizes = sorted(table_bytes(table, job.workload) for table in job.tables)
    sums_bytes = [0.0, *itertools.accumulate(sizes)]
    return [number for number in numbers if sums_bytes[number] < TABLE_BYTES / 2]


def unique_numbers(uses: Sequence[TableUse], replicated: int) -> list[int]:
    """Numbers of the tables with the fewest ids a bag, of those not replicated."""
    clusters = thresholds(uses, replicated, 0)
    rest = (use for use, c in zip(uses, clusters, strict=True) if c == "rb")
    return boundaries(ub_order(use) for use in rest)


def boundaries(keys: Iterable[tuple[float, float]]) -> list[int]:
    """Numbers of first elements, in order, that part no equal ones."""
    groups = itertools.groupby(sorted(keys))
    return [0, *itertools.accumulate(len(list(group)) for _, group in groups)]


def step_ms(simulation: Simulation) -> float:
    return simulation.timeline.step_ms
