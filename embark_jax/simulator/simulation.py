"""Simulates train steps of this package, and shows them as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from embark_jax.planner.cost.pricing import price
from embark_jax.planner.request.workload import SortedBatch, Workload
from embark_jax.plans.placement import Placement
from embark_jax.plans.tables import FeatureSpec
from embark_jax.simulator.step import is_route, step_tasks
from embark_jax.simulator.timeline import Timeline, schedule


@dataclasses.dataclass(frozen=True)
class Simulation:
    """A simulated step.

    Attributes:
      system: name of the simulated system.
      batch_size: samples per step, over all devices.
      timeline: when each device does what.
      routes_ms: time of routes that are made alone, not beside the step before; zero if
        every step makes its own.
    """

    system: str
    batch_size: int
    timeline: Timeline
    routes_ms: float = 0.0

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


def simulate_program(
    placements: Sequence[Placement],
    features: Sequence[FeatureSpec],
    workload: Workload,
    system: str = "embark_jax",
) -> Simulation:
    """Simulates this package's train step, overlapped as far as XLA may.

    Args:
      placements, features: placements of all tables, and what reads them.
      workload: fleet, batch, skew, optimizer, and the dense layers.
      system: name in the result.

    Raises:
      ValueError: if a placement is impossible on the fleet, or the products of the
        dense layers are not known.
    """
    dense = workload.dense
    if dense.parameters and dense.network is None:
        raise ValueError(
            "model.kind none says how many weights dense layers have, not what they "
            "multiply, so that the step cannot be simulated; choose another kind"
        )
    tasks = step_tasks(price(placements, features, workload))
    routes = [task for task in tasks if is_route(task)] if workload.overlap else []
    routes_ms = schedule(routes).step_ms
    return Simulation(system, workload.batch_size, schedule(tasks), routes_ms)


def simulate_hot_batches(
    placements: Sequence[Placement],
    features: Sequence[FeatureSpec],
    workload: Workload,
    all_hot_share: float,
) -> tuple[Simulation, Simulation]:
    """Simulates steps of ``train.hot_batches``: of an all-hot batch, in which no
    sharded table appears, and of a mixed one, which has all cold ids.

    Args:
      placements, features, workload: as for ``simulate_program``; all tables have hot
        rows.
      all_hot_share: share of the samples whose ids are all of hot rows, as ``embark
        data stats`` counts them.

    Raises:
      ValueError: if a table has no hot rows, or the share is not from 0 to below 1.
    """

    def simulated(all_hot: bool, system: str) -> Simulation:
        sorted_batch = SortedBatch(all_hot_share, all_hot)
        of_kind = dataclasses.replace(workload, sorted_batch=sorted_batch)
        return simulate_program(placements, features, of_kind, system)

    return simulated(True, "all-hot batch"), simulated(False, "mixed batch")


def mean_step_ms(
    all_hot: Simulation, mixed: Simulation, all_hot_share: float, window: int
) -> float:
    """Returns the mean time of a step of sorted batches. Kinds change once in a window
    of steps; there the routes of the batch of the other kind are made alone."""
    steps_ms = all_hot_share * all_hot.timeline.step_ms
    steps_ms += (1 - all_hot_share) * mixed.timeline.step_ms
    return steps_ms + (all_hot.routes_ms + mixed.routes_ms) / 2 / window


def report(simulations: Sequence[Simulation]) -> Table:
    """Makes a table for the terminal, with a column for each simulation, and a row for
    each figure and phase.

    Args:
      simulations: simulations of the same model and batch; the others are compared
        with the first one.
    """
    table = Table("a step", *(simulation.system for simulation in simulations))
    for column in table.columns[1:]:
        column.justify = "right"

    def row(name: str, value: Callable[[Simulation], str]) -> None:
        table.add_row(name, *map(value, simulations))

    row("samples/s", lambda each: f"{each.samples_per_s:,.0f}")
    row("ms", lambda each: f"{each.timeline.step_ms:.3f}")
    if len(simulations) > 1:
        first_ms = simulations[0].timeline.step_ms
        row("speedup", lambda each: f"{first_ms / each.timeline.step_ms:.2f}")
    row("exposed communication", lambda each: f"{each.exposed_share:.1%}")
    row("waiting for slower devices", lambda each: f"{each.waiting_share:.1%}")
    table.add_section()
    none = np.zeros(simulations[0].timeline.devices)
    phases = [simulation.timeline.phase_ms() for simulation in simulations]
    for phase in phases[0]:
        all_ms = np.stack([phase_ms.get(phase, none) for phase_ms in phases])
        if all_ms.any():
            table.add_row(f"{phase}, ms", *(f"{ms.mean():.3f}" for ms in all_ms))
    table.caption = "Phases are those of an average device; they overlap"
    return table
