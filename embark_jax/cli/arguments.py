"""Arguments and printing that several commands share."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, get_type_hints

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
from embark_jax.planner import TableList, Workload, load_table_list
from embark_jax.planner.request.workload import STATE_VALUES
from embark_jax.plans import fleet as fleets
from embark_jax.plans.options import DenseParallelism, Kernels, WireFormat
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
        help="Let a model of your own run the code that the folder names.",
    ),
]
Step = Annotated[
    int | None,
    typer.Option(
        help="Step of the checkpoint; by default the best of a run that stopped early, "
        "by its validation set, or the newest."
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
ZipfExponent = Annotated[
    float | None,
    typer.Option(
        help="For table lists: Zipf exponent of the ids; by default what the list "
        "says, or 0."
    ),
]


@dataclasses.dataclass(frozen=True)
class ListOptions:
    """The options of a command that plans for a table list; None if not given."""

    tables: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Plan for a list of tables instead of CONFIG: a YAML or JSON file, or "
            "the name of one in configs/models/, such as t180.",
        ),
    ]
    fleet: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.yaml",
            help="For table lists: the fleet, as a file or one of "
            f"{', '.join(fleets.BY_NAME)}; {DEFAULT_FLEET} by default.",
        ),
    ]
    nodes: Annotated[
        int | None,
        typer.Option(help="For table lists: number of nodes; 1 by default."),
    ]
    batch: Annotated[
        int | None,
        typer.Option(
            help="For table lists: samples per step, over all devices; by default what "
            "the list says, or 65536."
        ),
    ]
    zipf: ZipfExponent
    optimizer: Annotated[
        str | None,
        typer.Option(
            help=f"For table lists: row optimizer, one of {', '.join(STATE_VALUES)}; "
            "by default what the list says, or rowwise_adagrad."
        ),
    ]
    wire_rows: Annotated[
        WireFormat | None,
        typer.Option(
            help="For table lists: format in which rows travel between devices, like "
            "the config key embedding.wire.rows; float32 by default."
        ),
    ]
    wire_gradients: Annotated[
        WireFormat | None,
        typer.Option(
            help="For table lists: format in which gradients travel, like the config "
            "key embedding.wire.gradients; float32 by default."
        ),
    ]
    overlap: Annotated[
        bool | None,
        typer.Option(
            "--overlap/--no-overlap",
            help="For table lists: whether a step also makes the routes of the next, "
            "like the config key train.overlap; by default on several GPUs.",
        ),
    ]
    dense: Annotated[
        DenseParallelism | None,
        typer.Option(
            help="For table lists: layout of the dense layers, like the config key "
            "train.dense; replicated by default."
        ),
    ]
    dense_wire: Annotated[
        WireFormat | None,
        typer.Option(
            help="For table lists: format in which gradients of the dense layers "
            "travel, like the config key train.dense_wire; float32 by default.",
        ),
    ]
    kernels: Annotated[
        Kernels | None,
        typer.Option(
            help="For table lists: implementation of lookups and updates, like the "
            "config key embedding.kernels; xla by default."
        ),
    ]
    memory_gb: Annotated[
        float | None,
        typer.Option(
            help="For table lists: most memory of a device that a step may take, in "
            "GB; nine tenths of it by default.",
        ),
    ]

    def check(self, config_file: Path | None) -> None:
        """Raises ``BadParameter`` unless there is either a config, which says it all,
        or a table list."""
        if (config_file is None) == (self.tables is None):
            raise typer.BadParameter("give either a CONFIG or --tables")
        if config_file is None:
            return
        unused = [name for name, value in vars(self).items() if value is not None]
        if unused:
            names = ", ".join("--" + name.replace("_", "-") for name in unused)
            raise typer.BadParameter(
                f"{names} must come with --tables; with a CONFIG write "
                "fleet=dgx-h100 mesh.nodes=8 embedding.wire.rows=bfloat16 "
                "embedding.memory_gb=20 train.overlap=false, …"
            )

    def read(self) -> tuple[TableList, Workload]:
        """Returns the list, and its workload.

        Raises:
          ConfigError, ValueError: if there is no such list, or a value breaks its rule.
        """
        assert self.tables is not None
        listed = load_table_list(self.tables)
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
        return listed, dataclasses.replace(workload, memory_gb=self.memory_gb)


def with_list_options(function: Callable[..., None]) -> Callable[..., None]:
    """Makes a command of a function: it has the ``ListOptions`` in the place of the
    parameter ``options``."""
    hints = get_type_hints(ListOptions, include_extras=True)
    listed = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint
        )
        for name, hint in hints.items()
    ]
    signature = inspect.signature(function, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        parameters += listed if name == "options" else [parameter]

    @functools.wraps(function)
    def command(**arguments: Any) -> None:
        options = ListOptions(**{name: arguments.pop(name) for name in hints})
        function(**arguments, options=options)

    vars(command)["__signature__"] = signature.replace(parameters=parameters)
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


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
