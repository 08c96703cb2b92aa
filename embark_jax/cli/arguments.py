"""What several commands share: arguments, and how to print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

console = Console()

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML or gin file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Such as train.batch_size=4096."),
]


def say(text: str) -> None:
    """Prints text as it is: one line, and brackets are no markup."""
    console.print(text, soft_wrap=True, markup=False, highlight=False)
