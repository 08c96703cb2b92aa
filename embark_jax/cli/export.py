"""``embark export``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from embark_jax.cli.arguments import TrustCode, console, say
from embark_jax.plans.options import RowFormat
from embark_jax.plans.tables import TableSpec


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
    append: Annotated[
        bool,
        typer.Option(
            "--append",
            help="OUT is a chain of exports, which gets one more: a whole one if it "
            "has none, or else what has changed since the last of them.",
        ),
    ] = False,
    rows: Annotated[
        RowFormat,
        typer.Option(
            help="Format of the rows; int8 takes a quarter of the space, and has a "
            "scale for each row."
        ),
    ] = "float32",
    onnx: Annotated[
        bool,
        typer.Option(
            help="Write the dense layers in ONNX; without them scoring needs JAX."
        ),
    ] = True,
    trust_code: TrustCode = False,
) -> None:
    """Export a trained model: rows as safetensors, dense layers in ONNX and in JAX."""
    from embark_jax.export.writing import export_run

    def show(tables: Sequence[TableSpec]) -> Iterable[TableSpec]:
        return track(
            tables, "tables", console=console, transient=True, disable=len(tables) < 2
        )

    written = export_run(
        workdir,
        out,
        step,
        progress=show,
        since=since,
        trust_code=trust_code,
        row_format=rows,
        onnx=onnx,
        append=append,
    )
    if append:
        say(f"{written} added to {out}; Scorer.refresh takes it over")
        return
    if since is not None:
        say(f"changes since {since} written to {out}; Scorer.update takes them over")
        return
    say(f"model written to {out}; score rows with `embark predict {out} --in FILE`")
