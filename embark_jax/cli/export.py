"""``embark export``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from embark_jax.cli.arguments import Step, TrustCode, console, say
from embark_jax.plans.tables import TableSpec


def export(
    workdir: Annotated[str, typer.Argument(help="Folder of a run.")],
    out: Annotated[
        str, typer.Option(metavar="FOLDER", help="New folder for the export.")
    ],
    step: Step = None,
    onnx: Annotated[
        bool,
        typer.Option(
            help="Write the dense layers in ONNX; without them scoring needs JAX."
        ),
    ] = True,
    trust_code: TrustCode = False,
) -> None:
    """Export a trained model: rows as safetensors, dense layers in ONNX and in JAX."""
    from rich.progress import track

    from embark_jax.export.writing import export_run

    def show(tables: Sequence[TableSpec]) -> Iterable[TableSpec]:
        return track(
            tables, "tables", console=console, transient=True, disable=len(tables) < 2
        )

    exported = export_run(
        workdir,
        out,
        step,
        progress=show,
        trust_code=trust_code,
        onnx=onnx,
    )
    say(
        f"model of step {exported} written to {out}; score rows with "
        f"`embark predict {out} --in FILE`"
    )
