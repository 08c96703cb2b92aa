"""``embark export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from embark_jax.cli.arguments import TrustCode, console, say


def export(
    workdir: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[Path, typer.Option(help="New folder for the export.")],
    step: Annotated[
        int | None,
        typer.Option(help="Step of the checkpoint to export; the newest by default."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="STEP|FOLDER",
            help="Only rows that have changed since a step, or since a checkpoint or "
            "an export in a folder.",
        ),
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Export a trained model as safetensors, with scoring in NumPy and in JAX."""
    from embark_jax.export import export_run

    known = export_run(
        workdir,
        out,
        step,
        lambda tables: track(
            tables, "tables", console=console, transient=True, disable=len(tables) < 2
        ),
        since,
        trust_code,
    )
    if since is not None:
        say(f"changes since {since} written to {out}; Scorer.update takes them over")
        return
    how = (
        "score.py there shows how to use it"
        if known
        else "score.py does not know a model of your own: use scoring.jax, or "
        "`embark predict --trust-code`"
    )
    say(f"model written to {out}; {how}")
