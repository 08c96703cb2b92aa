"""``embark init``."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from embark_jax.cli.arguments import say


def init(
    out: Annotated[
        Path, typer.Argument(metavar="FILE.yaml", help="The new file.")
    ] = Path("experiment.yaml"),
    example: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The config to copy: quickstart, movielens_100k, one of "
            "configs/experiments, such as experiments/criteo_kaggle/dlrm, or a list of "
            "tables in configs/models, such as t180.",
        ),
    ] = "quickstart",
) -> None:
    """Write a config to start from: a copy of one that comes with the package."""
    from embark_jax._base.config import ConfigError, nearest
    from embark_jax.config import reading

    shipped = reading.shipped()
    if example not in shipped:
        raise ConfigError(f"--example is {example!r}; {nearest(example, shipped)}")
    if out.suffix != ".yaml":
        raise ConfigError(f"{out}: must end in .yaml")
    if out.exists():
        raise ConfigError(f"{out}: exists already; name a new file")
    out.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(shipped[example], out)
    say(f"config written to {out}; to train: embark train {out}")
