"""``embark sweep``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from embark_jax.cli.arguments import ConfigFile, Jobs, Overrides, console, say
from embark_jax.cli.host_memory import keep_freed_memory
from embark_jax.config import reading


def sweep(
    config_file: ConfigFile,
    overrides: Overrides = None,
    workdir: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the sweep, with a folder for each run; "
            "runs/NAME-sweep-TIME by default."
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Resume the sweep in --workdir; finished runs are kept."
        ),
    ] = False,
    jobs: Jobs = 1,
) -> None:
    """Train with every combination of the values that a config's sweep lists.

    List values in the config, or as KEY=VALUE: sweep.seed=[0,1,2]
    sweep.train.steps=[100,200]
    """
    if resume and workdir is None:
        raise typer.BadParameter("--resume needs the --workdir of the sweep")
    config = reading.load(config_file, overrides or ())
    keep_freed_memory()
    from embark_jax.run.sweep import read_points, run_sweep

    points = read_points(config_file, overrides or ())
    if workdir is None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        workdir = Path("runs") / f"{config.name}-sweep-{stamp}"
    run_sweep(points, workdir, resume, console, jobs)
    say(f"everything is in {workdir}")
