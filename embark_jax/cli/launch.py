"""``embark launch``."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from embark_jax.cli.arguments import say
from embark_jax.launch import one_host


def launch(
    context: typer.Context,
    processes: Annotated[
        int, typer.Option("-n", "--processes", min=1, help="Number of processes.")
    ],
    restarts: Annotated[
        int,
        typer.Option(
            min=0,
            help="How often all processes start again from the last checkpoint when "
            "one fails.",
        ),
    ] = 0,
) -> None:
    """Train by several processes of this machine; other words are for `train`."""
    embark = [sys.executable, "-c", "from embark_jax.cli import main; main()"]
    train = [*embark, "train", *context.args, "--distributed"]
    again = ["embark", "launch", "-n", str(processes), *context.args]
    again += [] if "--resume" in again else ["--resume"]
    status = one_host.run(train, processes, restarts, say, shlex.join(again))
    raise typer.Exit(status)
