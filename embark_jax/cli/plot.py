"""``embark plot``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from embark_jax.cli.arguments import say
from embark_jax.config import ConfigError

FORMATS = (".png", ".svg")


def plot(
    workdirs: Annotated[
        list[Path],
        typer.Argument(metavar="WORKDIR...", help="Folders of one or several runs."),
    ],
    out: Annotated[
        Path, typer.Option(help=f"Picture to write, in {' or '.join(FORMATS)}.")
    ],
) -> None:
    """Draw loss, AUC, throughput and fill of buffers, of finished runs or not."""
    if out.suffix not in FORMATS:
        raise ConfigError(f"--out is {out}: must end in {' or '.join(FORMATS)}")
    from embark_jax.train.figures import run_curves
    from embark_jax.train.logs import LogError, read_metrics

    runs = {}
    for workdir in workdirs:
        records = read_metrics(workdir)
        if not records:
            raise LogError(f"{workdir}: has logged nothing yet")
        runs[str(workdir)] = records
    run_curves(runs).savefig(out)
    say(f"plot is in {out}")
