"""The progress bar of a training loop."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column


def step_progress(show: bool | None = None, console: Console | None = None) -> Progress:
    """Returns a bar of steps, with the text of the task's field ``shown`` beside it.

    Args:
      show: whether the bar is shown; None shows it in a terminal and in a notebook.
      console: console that shows it; None takes standard output.
    """
    console = console or Console()
    if show is None:
        show = console.is_terminal or console.is_jupyter
    return Progress(
        TextColumn("step"),
        BarColumn(),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[shown]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not show,
    )
