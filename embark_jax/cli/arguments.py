"""Arguments and printing that several commands share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table

from embark_jax.cli.errors import printable
from embark_jax.planner.request.workload import STATE_VALUES
from embark_jax.plans import fleet as fleets
from embark_jax.plans.fleet import Fleet
from embark_jax.plans.options import WireFormat

PIPED_COLUMNS = 120
"""Width of what is shown where no terminal, and no COLUMNS, says another."""
console = Console()
if not console.is_terminal and "COLUMNS" not in os.environ:
    console.width = PIPED_COLUMNS

DEFAULT_FLEET = "dgx-h100"
WITHOUT_DATA = (
    "the data are not here: rows, hotness and dense columns are those of the config"
)

ConfigFile = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="Config to run: a YAML or gin file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Config keys to override, such as train.batch_size=4096.",
    ),
]
TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust-code",
        help="Let a model of your own run the code that the folder brings along.",
    ),
]
Rounds = Annotated[
    int, typer.Option(min=1, help="Rounds to time; the median is shown.")
]
Jobs = Annotated[
    int,
    typer.Option(
        min=1,
        help="Number of runs at a time, on the same devices and cores; each writes "
        "what it shows to a file beside its folder.",
    ),
]
TableListName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        help="Plan for a list of tables instead of CONFIG: a YAML or JSON file, or the "
        "name of one in configs/models/, such as t180.",
    ),
]
FleetName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE.yaml",
        help="For table lists: the fleet, as a file or one of "
        f"{', '.join(fleets.BY_NAME)}; {DEFAULT_FLEET} by default.",
    ),
]
Nodes = Annotated[
    int | None,
    typer.Option(help="For table lists: number of nodes; 1 by default."),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        help="For table lists: samples per step, over all devices; by default what the "
        "list says, or 65536."
    ),
]
ZipfExponent = Annotated[
    float | None,
    typer.Option(
        help="For table lists: Zipf exponent of the ids; by default what the list "
        "says, or 0."
    ),
]
OptimizerName = Annotated[
    str | None,
    typer.Option(
        help=f"For table lists: row optimizer, one of {', '.join(STATE_VALUES)}; by "
        "default what the list says, or rowwise_adagrad."
    ),
]
WireRows = Annotated[
    WireFormat | None,
    typer.Option(
        help="For table lists: format in which rows travel between devices, like the "
        "config key embedding.wire.rows; float32 by default."
    ),
]
WireGradients = Annotated[
    WireFormat | None,
    typer.Option(
        help="For table lists: format in which gradients travel, like the config key "
        "embedding.wire.gradients; float32 by default."
    ),
]


def load_fleet(name: str | None, nodes: int | None) -> Fleet:
    """Loads the fleet that ``--fleet`` and ``--nodes`` name."""
    return fleets.load(name or DEFAULT_FLEET, 1 if nodes is None else nodes)


@contextlib.contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Shows a bar for each stage of some work on a terminal. The function that it gives
    takes the stage, how far it is, and where it ends."""
    columns = (
        TextColumn("{task.description:6}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks = {}

        def update(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage)
            bars.update(tasks[stage], completed=done, total=total)

        yield update


def show_table(
    title: str | None, formats: Mapping[str, str], rows: Iterable[Iterable[Any]]
) -> None:
    """Prints a table of names and, right of them, numbers.

    Args:
      title: title of the table.
      formats: heading of each column, and the format of its numbers, such as ",".
      rows: values of each row; texts are shown as they are.
    """
    first, *others = formats
    table = Table(Column(first, overflow="fold"), title=title)
    for heading in others:
        table.add_column(heading, justify="right")
    for row in rows:
        cells = zip(row, formats.values(), strict=True)
        table.add_row(
            *(escape(x) if isinstance(x, str) else format(x, spec) for x, spec in cells)
        )
    console.print(table)


def say(text: str) -> None:
    """Prints text on one line, without interpreting brackets as markup."""
    console.print(printable(text), soft_wrap=True, markup=False, highlight=False)
