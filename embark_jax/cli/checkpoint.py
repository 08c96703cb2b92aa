"""``embark checkpoint``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from embark_jax.cli.arguments import say

app = typer.Typer(help="Convert checkpoints of earlier versions.", no_args_is_help=True)


@app.callback()
def checkpoint() -> None:
    """A group, though it has one command yet."""


@app.command()
def convert(
    folder: Annotated[Path, typer.Argument(help="A run's checkpoints folder.")],
) -> None:
    """Convert checkpoints that Orbax wrote (version 0) to this version."""
    from embark_jax.train.checkpoint.version_0 import convert

    convert(folder, say)
