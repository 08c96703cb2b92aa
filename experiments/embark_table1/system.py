"""Simulates train steps of EMBark's system: its baseline and its improvements."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from embark_jax.planner.cost.rates import Rates
from embark_jax.plans.options import Cluster
from embark_jax.plans.storage import Placement
from embark_jax.simulator import Job, Simulation, Task, schedule, serial
from embark_jax.simulator.tasks import Tasks
from experiments.embark_table1.loads import count
from experiments.embark_table1.placements import planned, table_row_wise
from experiments.embark_table1.step import EmbarkStep

WIDE_ROWS = 2**32
"""With a larger table, all ids of HugeCTR have 64 bits: its ``i64_input_key``."""
CHOICES: dict[str, list[tuple[Cluster, ...]]] = {
    "+ sharding": [("rb",)],
    "+ clusters": [("dp", "rb"), ("rb", "ub"), ("dp", "rb", "ub")],
}
"""The clusters that tables may be in, for each of EMBark's improvements."""


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
        Tasks(Rates(job.workload.fleet)),
        job.workload,
        count(placements, job.features, job.workload),
        job.network,
        key_bytes(job),
    )
    timeline = schedule(arrange(step.tasks()))
    return Simulation(system, job.workload.batch_size, timeline)


def simulate_ablation(job: Job) -> Iterator[Simulation]:
    """Simulates EMBark's baseline and its three improvements: kernels overlap, tables
    are sharded freely, tables choose a cluster. The last two allow more placements, and
    keep the fastest one so far.

    Args:
      job: what is trained.
    """
    placements = table_row_wise(job.tables, job.workload)
    yield simulate_embark("baseline", job, placements, serial)
    best = simulate_embark("+ overlap", job, placements)
    yield best
    for system, choices in CHOICES.items():
        for clusters in choices:
            found = simulate_embark(system, job, plan_embark(job, clusters))
            best = min(best, found, key=lambda each: each.timeline.step_ms)
        best = dataclasses.replace(best, system=system)
        yield best


def plan_embark(
    job: Job,
    clusters: tuple[Cluster, ...],
    forced: Mapping[str, Cluster] | None = None,
) -> list[Placement]:
    """Plans placements for EMBark's system.

    Args:
      job: what is trained.
      clusters: clusters that tables may be in.
      forced: clusters of tables by name, which are fixed.
    """
    return planned(
        job.tables,
        job.features,
        job.workload,
        clusters,
        key_bytes(job),
        forced,
    )
