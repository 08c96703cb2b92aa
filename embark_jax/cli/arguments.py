"""Arguments and printing that several commands share."""

from __future__ import annotations

import contextlib
import dataclasses
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
from embark_jax.planner import TableList, Workload
from embark_jax.planner.request.workload import STATE_VALUES
from embark_jax.plans import fleet as fleets
from embark_jax.plans.options import DenseParallelism, DenseWire, Kernels, WireFormat
from embark_jax.plans.wire import Wire

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


Overlap = Annotated[
    bool | None,
    typer.Option(
        "--overlap/--no-overlap",
        help="For table lists: whether a step also makes the routes of the next, like "
        "the config key train.overlap; by default on several GPUs.",
    ),
]
Dense = Annotated[
    DenseParallelism | None,
    typer.Option(
        help="For table lists: layout of the dense layers, like the config key "
        "train.dense; replicated by default."
    ),
]
DenseWireName = Annotated[
    DenseWire | None,
    typer.Option(
        "--dense-wire",
        help="For table lists: format in which gradients of the dense layers travel, "
        "like the config key train.dense_wire; float32 by default.",
    ),
]
KernelsName = Annotated[
    Kernels | None,
    typer.Option(
        help="For table lists: implementation of lookups and updates, like the config "
        "key embedding.kernels; xla by default, which runs until the kernels have "
        "passed `embark bench kernels --check`."
    ),
]
MemoryGB = Annotated[
    float | None,
    typer.Option(
        "--memory-gb",
        help="For table lists: most memory of a device that a step may take, in GB; "
        "nine tenths of it by default.",
    ),
]


@dataclasses.dataclass(frozen=True)
class ListOptions:
    """What a command is told of a table list; None where it is not.

    Attributes:
      others: options of the command's own that are for table lists, by name.
    """

    fleet: str | None
    nodes: int | None
    batch: int | None
    zipf: float | None
    optimizer: str | None
    wire_rows: WireFormat | None
    wire_gradients: WireFormat | None
    overlap: bool | None
    dense: DenseParallelism | None
    dense_wire: DenseWire | None
    kernels: Kernels | None
    memory_gb: float | None
    others: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def check_unused(self) -> None:
        """Raises ``BadParameter`` if any is given, since a config says it all."""
        options = {**vars(self), **self.others, "others": None}
        unused = [name for name, value in options.items() if value is not None]
        if unused:
            names = ", ".join("--" + name.replace("_", "-") for name in unused)
            raise typer.BadParameter(
                f"{names} must come with --tables; with a CONFIG write "
                "fleet=dgx-h100 mesh.nodes=8 embedding.wire.rows=bfloat16 "
                "embedding.memory_gb=20 train.overlap=false, …"
            )

    def workload(self, listed: TableList) -> Workload:
        """Returns the workload of a list.

        Raises:
          ConfigError, ValueError: if a value breaks its rule.
        """
        nodes = 1 if self.nodes is None else self.nodes
        workload = listed.workload(
            fleets.load(self.fleet or DEFAULT_FLEET, nodes),
            self.batch,
            self.zipf,
            self.optimizer,
            Wire(
                self.wire_rows or "float32",
                self.wire_gradients or "float32",
                self.dense_wire or "float32",
            ),
            self.overlap,
            self.dense or "replicated",
            self.kernels or "xla",
        )
        return dataclasses.replace(workload, memory_gb=self.memory_gb)


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
