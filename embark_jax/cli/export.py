"""``embark export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from embark_jax.cli.arguments import console, say


def export(
    workdir: Annotated[Path, typer.Argument(help="Of a run.")],
    out: Annotated[Path, typer.Option(help="A new folder.")],
    step: Annotated[
        int | None, typer.Option(help="Of the checkpoint; the newest unless given.")
    ] = None,
) -> None:
    """Write a trained model as safetensors, with a NumPy and a JAX way to score."""
    from embark_jax.export import export_run

    export_run(
        workdir,
        out,
        step,
        lambda tables: track(
            tables, "tables", console=console, transient=True, disable=len(tables) < 2
        ),
    )
    say(f"the model is in {out}; score.py there shows how to use it")
