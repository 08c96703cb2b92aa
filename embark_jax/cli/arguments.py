"""What several commands share: arguments, and how to print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from embark_jax import fleet as fleets
from embark_jax.cli.errors import printable
from embark_jax.fleet import Fleet
from embark_jax.planner.request.wire import WireFormat
from embark_jax.planner.request.workload import STATE_VALUES

console = Console()

DEFAULT_FLEET = "dgx-h100"

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
        help="With --tables: the machines, as a file or a name of "
        f"{', '.join(fleets.BY_NAME)}; {DEFAULT_FLEET} unless given.",
    ),
]
Nodes = Annotated[
    int | None, typer.Option(help="With --tables: number of machines; 1 unless given.")
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        help="With --tables: samples a step, over all devices; unless given, what the "
        "list says, or 65536."
    ),
]
ZipfExponent = Annotated[
    float | None,
    typer.Option(
        help="With --tables: Zipf exponent of the ids; unless given, what the list "
        "says, or 0."
    ),
]
OptimizerName = Annotated[
    str | None,
    typer.Option(
        help=f"With --tables: row optimizer, one of {', '.join(STATE_VALUES)}; unless "
        "given, what the list says, or rowwise_adagrad."
    ),
]
WireRows = Annotated[
    WireFormat | None,
    typer.Option(
        help="With --tables: format in which rows travel between devices, as "
        "embedding.wire.rows of a config; float32 unless given."
    ),
]
WireGradients = Annotated[
    WireFormat | None,
    typer.Option(
        help="With --tables: format in which gradients travel, as "
        "embedding.wire.gradients of a config; float32 unless given."
    ),
]


def load_fleet(name: str | None, nodes: int | None) -> Fleet:
    """What ``--fleet`` and ``--nodes`` ask for."""
    return fleets.load(name or DEFAULT_FLEET, 1 if nodes is None else nodes)


def say(text: str) -> None:
    """Prints text as it is: one line, and brackets are no markup."""
    console.print(printable(text), soft_wrap=True, markup=False, highlight=False)
