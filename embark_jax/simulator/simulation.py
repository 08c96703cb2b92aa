"""Simulates train steps of this package."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from embark_jax.planner.request.workload import STATE_VALUES, SortedBatch
from embark_jax.plans.storage import Placement
from embark_jax.simulator.job import Job
from embark_jax.simulator.program_step import program_tasks
from embark_jax.simulator.timeline import Timeline, schedule


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
        """Returns a record for other programs; phases in ms, of an average and the
        busiest device."""
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


def simulate_hot_batches(
    job: Job, placements: Sequence[Placement], all_hot_share: float
) -> tuple[Simulation, Simulation]:
    """Simulates steps of ``train.hot_batches``: of an all-hot batch, in which no
    sharded table appears, and of a mixed one, which has all cold ids.

    Args:
      job, placements: as for ``simulate_program``; all tables have hot rows.
      all_hot_share: share of the samples whose ids are all of hot rows, as ``embark
        data stats`` counts them.

    Raises:
      ValueError: if a table has no hot rows, or the share is not from 0 to below 1.
    """
    hot, mixed = (
        simulate_program(
            dataclasses.replace(
                job,
                workload=dataclasses.replace(
                    job.workload, sorted_batch=SortedBatch(all_hot_share, all_hot)
                ),
            ),
            placements,
        )
        for all_hot in (True, False)
    )
    return (
        dataclasses.replace(hot, system="all-hot batch"),
        dataclasses.replace(mixed, system="mixed batch"),
    )


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
