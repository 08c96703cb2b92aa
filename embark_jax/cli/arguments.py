"""Arguments and printing that several commands share."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console

from embark_jax.cli.errors import printable

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
PIPED_COLUMNS = 120
"""Width of what is shown where no terminal, and no COLUMNS, says another."""
console = Console()
if not console.is_terminal and "COLUMNS" not in os.environ:
    console.width = PIPED_COLUMNS

WITHOUT_DATA = (
    "the data are not here: rows, hotness and dense columns are those of the config"
)

ConfigFile = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        help="A YAML or gin file; or the name of a config that comes with the package, "
        "such as quickstart.",
    ),
]
ConfigOrList = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG|TABLES",
        help="A config, or a list of tables in YAML or JSON; or the name of one that "
        "comes with the package, such as quickstart or t180.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Config keys to override, such as train.batch_size=4096; `embark keys` "
        "shows them.",
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
Log = Annotated[
    Path | None,
    typer.Option(
        help="A log such as the data were prepared of, which gives the rows the "
        "histories of their users."
    ),
]
Rounds = Annotated[
    int, typer.Option(min=1, help="Rounds to time; the median is shown.")
]


@contextlib.contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Shows a bar for each stage of some work on a terminal. The function that it gives
    takes the stage, how far it is, and where it ends."""
    from rich.progress import Progress

    if not console.is_terminal:
        yield lambda stage, done, total: None
        return
    with Progress(console=console) as bars:
        tasks = {}

        def update(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage)
            bars.update(tasks[stage], completed=done, total=total)

        yield update


@contextlib.contextmanager
def counted_rows() -> Iterator[Callable[[int], None]]:
    """Shows on a terminal how many rows are done; the function that it gives adds
    some."""
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.completed:,} rows"), TimeElapsedColumn()
    silent = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=silent) as shown:
        task = shown.add_task("", total=None)
        yield lambda rows: shown.advance(task, rows)


def tracked(text: str) -> Callable[[Sequence[T]], Iterable[T]]:
    """Returns what iterates over some work, with a bar on a terminal if it is long."""
    from rich.progress import track

    def iterate(items: Sequence[T]) -> Iterable[T]:
        short = len(items) < 2
        return track(items, text, console=console, transient=True, disable=short)

    return iterate


def show_table(
    title: str | None, formats: Mapping[str, str], rows: Iterable[Iterable[Any]]
) -> None:
    """Prints a table of names and, right of them, numbers.

    Args:
      title: title of the table.
      formats: heading of each column, and the format of its numbers, such as ",".
      rows: values of each row; texts are shown as they are.
    """
    from rich.markup import escape
    from rich.table import Column, Table

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


def end_like_ctrl_c(context: typer.Context) -> None:
    """Lets SIGTERM end a command as Ctrl-C does, which removes unfinished files."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    context.call_on_close(lambda: signal.signal(signal.SIGTERM, before))


def say(text: str) -> None:
    """Prints text on one line, without interpreting brackets as markup."""
    console.print(printable(text), soft_wrap=True, markup=False, highlight=False)


def check_outputs(inputs: Iterable[str | Path | None], **outputs: Path | None) -> None:
    """Raises ``ConfigError`` if a file to write is a folder, or that of another option,
    or is read: itself, by a link, or as a file of a folder."""
    from embark_jax._base.config import ConfigError

    files = [out.resolve() for out in outputs.values() if out is not None]
    if len(files) > len({*files}):
        raise ConfigError(f"--{' and --'.join(outputs)}: must name different files")
    for name, out in outputs.items():
        if out is None or not out.exists():
            continue
        if out.is_dir():
            raise ConfigError(f"--{name} {out}: is a folder, must be a file")
        for path in map(Path, filter(None, inputs)):
            if not path.exists():
                continue
            if out.samefile(path) or path.resolve() in out.resolve().parents:
                raise ConfigError(
                    f"--{name} {out}: is read, as {path}; name another file"
                )


def show_rows(table: pa.Table) -> None:
    """Prints the rows of a table, with tabs between their values."""
    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
        print("\t".join(map(_text, row)))


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return printable(str(value)).replace("\n", "\\n").replace("\t", "\\t")


def write_table(table: pa.Table, out: Path) -> None:
    """Writes a table as CSV, Parquet or JSON lines, as the name says.

    Raises:
      ConfigError: if a column cannot be in such a file.
    """
    import json

    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    from embark_jax._base.config import ConfigError
    from embark_jax._base.files import replacing

    try:
        with replacing(out.resolve()) as scratch:
            if out.suffix == ".csv":
                pyarrow.csv.write_csv(table, scratch)
            elif out.suffix == ".parquet":
                pyarrow.parquet.write_table(table, scratch)
            else:
                with scratch.open("w", encoding="utf-8") as file:
                    for row in table.to_pylist():
                        file.write(f"{json.dumps(row, ensure_ascii=False)}\n")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigError(
            f"{out}: cannot hold a column of --keep ({error}); write .parquet"
        ) from None
