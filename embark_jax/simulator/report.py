"""Shows simulations as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from embark_jax.simulator.simulation import Simulation


def report(simulations: Sequence[Simulation]) -> Table:
    """Makes a table with a column for each simulation, and a row for each figure and
    phase.

    Args:
      simulations: simulations of the same model and batch; the others are compared
        with the first one.
    """
    table = Table("a step", *(simulation.system for simulation in simulations))
    for column in table.columns[1:]:
        column.justify = "right"

    def row(name, values):
        table.add_row(name, *values)

    row("samples/s", [f"{simulation.samples_per_s:,.0f}" for simulation in simulations])
    row("ms", [f"{simulation.timeline.step_ms:.3f}" for simulation in simulations])
    if len(simulations) > 1:
        first_ms = simulations[0].timeline.step_ms
        row(
            "speedup",
            [
                f"{first_ms / simulation.timeline.step_ms:.2f}"
                for simulation in simulations
            ],
        )
    row(
        "exposed communication",
        [f"{simulation.exposed_share:.1%}" for simulation in simulations],
    )
    row(
        "waiting for slower devices",
        [f"{simulation.waiting_share:.1%}" for simulation in simulations],
    )
    table.add_section()
    phases = [simulation.timeline.phase_ms() for simulation in simulations]
    for phase in phases[0]:
        if any(phase_ms[phase].any() for phase_ms in phases):
            row(
                f"{phase}, ms",
                [f"{phase_ms[phase].mean():.3f}" for phase_ms in phases],
            )
    table.caption = "Phases are those of an average device; they overlap"
    if len(simulations) > 1:
        table.caption += ", but for the baseline's"
    return table
