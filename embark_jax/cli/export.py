"""``embark export``."""

from __future__ import annotations

from typing import Annotated

import typer

from embark_jax.cli.arguments import Step, TrustCode, say, tracked


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
    from embark_jax._base.object_store import file_system_or_bucket
    from embark_jax.data import encoding
    from embark_jax.export.writing import export_run

    exported = export_run(
        workdir,
        out,
        step,
        progress=tracked("tables"),
        trust_code=trust_code,
        onnx=onnx,
    )
    scores = f"`embark predict {out} --in FILE` scores rows"
    if not (file_system_or_bucket(out) / encoding.FOLDER).exists():
        scores = "`ej.load_id_scorer` scores ids"  # raw rows were never encoded
    say(f"model of step {exported} written to {out}; {scores}")
