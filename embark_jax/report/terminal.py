"""A plan as tables for the terminal."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator, Sequence

import numpy as np
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from embark_jax._base.memory import byte_unit
from embark_jax.plans.plan import Plan
from embark_jax.report import summary
from embark_jax.report.summary import Decision, short

MOST_DECISIONS = 30
"""Largest number of lines of tables, unless each table is asked for."""
MIN_REASON_COLUMNS = 40
"""Width below which reasons are listed below the table, not in a column of it."""
MOST_DEVICES = 16
"""Devices that are listed one by one; more are listed by node."""
PATH_TITLE = (
    "Where the step's time goes: phases last until their fullest device is done"
)
BAR_COLUMNS = 24
TEXT_COLUMNS = 120
WIDE_COLUMNS = 100
"""Width below which a terminal is not shown all numbers of tables."""


@dataclasses.dataclass(frozen=True)
class Report:
    """Shows owners of tables with reasons, and the work and memory of each device.

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
        for sentence in (
            summary.assumptions(plan),
            summary.uneven_rows(plan),
        ):
            if sentence:
                yield Text(sentence)
        yield from _decisions(plan, self.in_full, console, options)
        yield Text(summary.CLUSTERS)
        if plan.prediction and plan.prediction.breakdown:
            yield Text(summary.COLUMNS)
        yield from _critical_path(plan)
        yield _devices(plan)


def as_text(plan: Plan) -> str:
    """Returns plain text, also in a terminal and in a notebook."""
    text = io.StringIO()
    console = Console(
        file=text, width=TEXT_COLUMNS, force_terminal=False, force_jupyter=False
    )
    console.print(Report(plan))
    return text.getvalue()


def _table(*headings: str, title: str) -> Table:
    """Makes a table whose first column is text; the others are numbers."""
    table = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1)
    )
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left", no_wrap=i > 0)
    return table


def _decisions(
    plan: Plan, separately: bool, console: Console, options: ConsoleOptions
) -> Iterator[RenderableType]:
    """Shows who holds what; reasons have a column of their own where it is wide."""
    rows = summary.decisions(plan, separately)
    shown = rows if separately else rows[:MOST_DECISIONS]
    narrow = options.max_width < WIDE_COLUMNS
    table = _decision_table(plan, shown, narrow, with_reasons=False)
    room = options.max_width - Measurement.get(console, options, table).maximum
    if with_reasons := room >= MIN_REASON_COLUMNS:
        table = _decision_table(plan, shown, narrow, with_reasons)
    left_out = sum(len(row.tables) for row in rows[len(shown) :])
    if left_out:
        table.caption = f"and {summary.counted(left_out, 'table')} more: see --all"
        table.caption_justify = "left"
    yield table
    if not with_reasons:
        for row in shown:
            yield Text(f"{row.name}: {row.why}")


def _decision_table(
    plan: Plan, rows: Sequence[Decision], narrow: bool, with_reasons: bool
) -> Table:
    numbers = ("rows × dim", "ms", "without")
    if not narrow:
        numbers = ("rows × dim", "ids", "ms", "share", "without")
    table = _table("table", *numbers, title="Tables")
    table.add_column("placement", no_wrap=True)
    table.add_column("devices", max_width=16)
    if with_reasons:
        table.add_column("why", ratio=1)
    step_ms = plan.prediction.step_ms if plan.prediction else 0.0
    for row in rows:
        cells = {
            "rows × dim": f"{short(row.rows)} × {row.dim}",
            "ids": str(row.ids),
            "ms": "–" if row.ms is None else f"{row.ms:.3f}",
            "share": "–"
            if row.ms is None or not step_ms
            else f"{row.ms / step_ms:.1%}",
            "without": summary.without(plan, row),
        }
        table.add_row(
            Text(row.name),
            *(cells[number] for number in numbers),
            row.placement,
            row.devices,
            *([Text(row.why)] if with_reasons else []),
        )
    return table


def _critical_path(plan: Plan) -> list[Table]:
    phase_ms = summary.critical_path(plan)
    total_ms = sum(phase_ms.values())
    if not total_ms:
        return []
    table = _table("phase", "ms", "share", title=PATH_TITLE)
    table.add_column("")
    for name, ms in phase_ms.items():
        bar = "█" * round(BAR_COLUMNS * ms / max(phase_ms.values()))
        table.add_row(name, f"{ms:.3f}", f"{ms / total_ms:.1%}", bar)
    return [table]


def _devices(plan: Plan) -> Table:
    columns = {}
    held = {"rows": summary.row_bytes(plan)}
    if plan.prediction:
        columns = {"busy, ms": np.array(plan.prediction.device_ms)}
        if plan.prediction.breakdown:
            columns["ids a sample"] = np.array(plan.prediction.breakdown.device_ids)
        held["allocated"] = np.array(plan.prediction.device_bytes)
    unit, size = byte_unit(max(values.max() for values in held.values()))
    columns |= {f"{name}, {unit}": values / size for name, values in held.items()}
    one_by_one = plan.devices <= MOST_DEVICES
    title = "Devices" if one_by_one else "Devices: the fullest of each node"
    table = _table("device" if one_by_one else "node", *columns, title=title)
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
