"""``embark train`` and ``embark evaluate``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from embark_jax import config_io
from embark_jax.cli.arguments import ConfigFile, Overrides, console, say
from embark_jax.cli.host_memory import keep_freed_memory


def train(
    config_file: ConfigFile,
    overrides: Overrides = None,
    workdir: Annotated[
        Path | None,
        typer.Option(help="Where the run leaves everything; default runs/NAME-TIME."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --workdir.")
    ] = False,
    plan: Annotated[
        Path | None,
        typer.Option(help="Train with this plan, as `embark plan --out` writes it."),
    ] = None,
) -> None:
    """Train a model and evaluate it on the test set."""
    if resume and workdir is None:
        raise typer.BadParameter("--resume needs the --workdir of the run to continue")
    config = config_io.load(config_file, overrides or ())
    keep_freed_memory()
    from embark_jax import run

    if workdir is None:
        workdir = Path("runs") / f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    run.train(config, workdir, resume, console, plan)
    say(f"everything is in {workdir}")


def evaluate(
    config_file: ConfigFile,
    checkpoint: Annotated[
        Path, typer.Option(help="A run's checkpoints folder, or one of those in it.")
    ],
    overrides: Overrides = None,
) -> None:
    """Evaluate a checkpoint on the test set; any mesh and plan will do."""
    config = config_io.load(config_file, overrides or ())
    from embark_jax import run

    run.evaluate_checkpoint(config, checkpoint, console)
