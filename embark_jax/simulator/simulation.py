"""Simulates train steps of this package and of EMBark's system."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from embark_jax.planner.cost.rates import Rates
from embark_jax.planner.request.workload import STATE_VALUES
from embark_jax.plans.storage import Cluster, Placement
from embark_jax.simulator.embark_loads import count
from embark_jax.simulator.embark_plans import planned, table_row_wise
from embark_jax.simulator.embark_step import EmbarkStep
from embark_jax.simulator.job import Job
from embark_jax.simulator.program_step import program_tasks
from embark_jax.simulator.tasks import Tasks
from embark_jax.simulator.timeline import Task, Timeline, schedule, serial

CHOICES: dict[str, list[tuple[Cluster, ...]]] = {
    "+ sharding": [("rb",)],
    "+ clusters": [("dp", "rb"), ("rb", "ub"), ("dp", "rb", "ub")],
}
"""The clusters that tables may be in, for each of EMBark's improvements."""


@dataclasses.dataclass(frozen=True)
class Simulation:
    """A simulated step.

    Attributes:
      system: name of the simulated system.
      batch_size: samples per step, over all devices.
      timeline: when each device does what.
    """

    system: str
    batch_size: int
    timeline: Timeline

    @property
    def samples_per_s(self) -> float:
        return 1e3 * self.batch_size / self.timeline.step_ms

    @property
    def exposed_share(self) -> float:
        """Share of the step in which, on an average device, only links work."""
        return float(self.timeline.exposed_ms().mean()) / self.timeline.step_ms

    @property
    def waiting_share(self) -> float:
        """Share of the step in which an average device waits for slower ones."""
        return float(self.timeline.idle_ms().mean()) / self.timeline.step_ms

    def record(self) -> dict[str, Any]:
        """A record for other programs; phases in ms, of an average and the busiest
        device."""
        return {
            "system": self.system,
            "batch_size": self.batch_size,
            "step_ms": self.timeline.step_ms,
            "samples_per_s": self.samples_per_s,
            "exposed_communication_share": self.exposed_share,
            "waiting_share": self.waiting_share,
            "phases_ms": {
                phase: {"mean": float(ms.mean()), "most": float(ms.max())}
                for phase, ms in self.timeline.phase_ms().items()
            },
        }


def simulate_program(job: Job, placements: Sequence[Placement]) -> Simulation:
    """Simulates this package's train step, overlapped as far as XLA may.

    Args:
      job: what is trained.
      placements: placements of all tables.
    """
    tasks = program_tasks(
        placements,
        job.features,
        job.workload,
        job.network,
        job.dtype,
        STATE_VALUES[job.dense_optimizer][0],
    )
    return Simulation("embark_jax", job.workload.batch_size, schedule(tasks))


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
        job.embark_key_bytes,
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
        job.embark_key_bytes,
        forced,
    )
