"""A plan as tables for the terminal."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator

import numpy as np
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from embark_jax._base.memory import byte_unit
from embark_jax.plans.plan import Plan
from embark_jax.report import summary
from embark_jax.report.summary import short

MOST_DECISIONS = 30
"""Largest number of lines of tables, unless each table is asked for."""
MOST_DEVICES = 16
"""Devices that are listed one by one; more are listed by node."""
PATH_TITLE = (
    "Where the step's time goes: phases last until their busiest device is done"
)
BAR_COLUMNS = 24
WIDE_COLUMNS = 100
"""Width below which a terminal is not shown all numbers of tables."""


@dataclasses.dataclass(frozen=True)
class Report:
    """Shows owners of tables, and the work and memory of each device.

    Attributes:
      plan: the plan.
      in_full: whether every table has a line, rather than one for alike tables.
    """

    plan: Plan
    in_full: bool = False

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        plan = self.plan
        yield Text(summary.headline(plan))
        yield Text(summary.verdict(plan))
        for advice in plan.prediction.advice if plan.prediction else ():
            yield Text(advice, style="bold yellow")
        if plan.prediction and plan.prediction.placeholders:
            yield Text(summary.PLACEHOLDERS, style="bold yellow")
        if sentence := summary.assumptions(plan):
            yield Text(sentence)
        yield from _critical_path(plan)
        yield _decisions(plan, self.in_full, options.max_width >= WIDE_COLUMNS)
        yield Text(summary.CLUSTERS)
        if plan.prediction:
            yield Text(summary.COLUMNS)
        yield _devices(plan)
        if sentence := summary.uneven_rows(plan):
            yield Text(sentence)


def as_text(plan: Plan) -> str:
    """Returns plain text, also in a terminal and in a notebook."""
    text = io.StringIO()
    console = Console(
        file=text, width=WIDE_COLUMNS, force_terminal=False, force_jupyter=False
    )
    console.print(Report(plan))
    return text.getvalue()


def new_table(*headings: str, title: str | None = None) -> Table:
    """Makes a table whose first column is text; the others are numbers."""
    table = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1)
    )
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left", no_wrap=i > 0)
    return table


def _decisions(plan: Plan, separately: bool, wide: bool) -> Table:
    """Shows who holds what."""
    rows = summary.decisions(plan, separately)
    shown = rows if separately else rows[:MOST_DECISIONS]
    step_ms = plan.prediction.step_ms if plan.prediction else 0.0
    numbers = {
        "rows × dim": lambda row: f"{short(row.rows)} × {row.dim}",
        "ids": lambda row: str(row.ids),
        "ms": lambda row: "–" if row.ms is None else f"{row.ms:.3f}",
        "share": lambda row: f"{row.ms / step_ms:.1%}" if row.ms and step_ms else "–",
    }
    if not wide:
        del numbers["ids"], numbers["share"]
    table = new_table("table", *numbers, title="Tables")
    table.add_column("placement", no_wrap=True)
    table.add_column("devices", max_width=16)
    for row in shown:
        cells = [number(row) for number in numbers.values()]
        table.add_row(Text(row.name), *cells, row.placement, row.devices)
    left_out = sum(len(row.tables) for row in rows[len(shown) :])
    if left_out:
        table.caption = f"and {summary.counted(left_out, 'table')} more: see --all"
        table.caption_justify = "left"
    return table


def _critical_path(plan: Plan) -> list[Table]:
    phase_ms = summary.critical_path(plan)
    total_ms = sum(phase_ms.values())
    if not total_ms:
        return []
    table = new_table("phase", "ms", "share", title=PATH_TITLE)
    table.add_column("")
    for name, ms in phase_ms.items():
        bar = "█" * round(BAR_COLUMNS * ms / max(phase_ms.values()))
        table.add_row(name, f"{ms:.3f}", f"{ms / total_ms:.1%}", bar)
    return [table]


def _devices(plan: Plan) -> Table:
    columns = {}
    held = {"rows": summary.row_bytes(plan)}
    if plan.prediction:
        columns = {
            "busy, ms": np.array(plan.prediction.device_ms),
            "ids received a sample": np.array(plan.prediction.breakdown.device_ids),
        }
        held["allocated"] = np.array(plan.prediction.device_bytes)
    unit, size = byte_unit(max(values.max() for values in held.values()))
    columns |= {f"{name}, {unit}": values / size for name, values in held.items()}
    one_by_one = plan.devices <= MOST_DEVICES
    title = "Devices" if one_by_one else "Devices: the fullest of each node"
    table = new_table("device" if one_by_one else "node", *columns, title=title)
    rows_shown = plan.devices if one_by_one else plan.nodes
    for row in range(rows_shown):
        fullest = [load.reshape(rows_shown, -1)[row].max() for load in columns.values()]
        table.add_row(str(row), *map(short, fullest))
    table.add_section()
    table.add_row("mean", *(short(load.mean()) for load in columns.values()))
    table.add_row(
        "imbalance",
        *(
            f"{load.max() / load.mean():.2f}" if load.any() else "–"
            for load in columns.values()
        ),
    )
    return table
