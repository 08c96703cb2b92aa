"""``embark checkpoint``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from embark_jax.cli.arguments import say

app = typer.Typer(help="Convert checkpoints of earlier versions.", no_args_is_help=True)


@app.callback()
def checkpoint() -> None:
    """Makes this a group of commands, although it has only one so far."""


@app.command()
def convert(
    folder: Annotated[Path, typer.Argument(help="The checkpoints folder of a run.")],
) -> None:
    """Convert checkpoints that Orbax wrote (version 0) to this version."""
    from embark_jax.checkpoint.version_0 import convert

    convert(folder, say)
