"""Shows simulations as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from embark_jax.simulator.simulation import Simulation


def report(simulations: Sequence[Simulation]) -> Table:
    """A table with a column for each simulation, and a row for each figure and phase.

    Args:
      simulations: simulations of the same model and batch; the others are compared
        with the first one.
    """
    table = Table("a step", *(simulation.system for simulation in simulations))
    for column in table.columns[1:]:
        column.justify = "right"

    def row(name, values):
        table.add_row(name, *values)

    row("samples/s", [f"{each.samples_per_s:,.0f}" for each in simulations])
    row("ms", [f"{each.timeline.step_ms:.3f}" for each in simulations])
    if len(simulations) > 1:
        first_ms = simulations[0].timeline.step_ms
        row(
            "speedup",
            [f"{first_ms / each.timeline.step_ms:.2f}" for each in simulations],
        )
    row("exposed communication", [f"{each.exposed_share:.1%}" for each in simulations])
    row(
        "waiting for slower devices",
        [f"{each.waiting_share:.1%}" for each in simulations],
    )
    table.add_section()
    phases = [each.timeline.phase_ms() for each in simulations]
    for phase in phases[0]:
        if any(each[phase].any() for each in phases):
            row(f"{phase}, ms", [f"{each[phase].mean():.3f}" for each in phases])
    table.caption = "Phases are those of an average device; they overlap"
    if len(simulations) > 1:
        table.caption += ", but for the baseline's"
    return table
