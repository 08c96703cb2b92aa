"""``embark search``: several runs of one config."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from embark_jax.cli.arguments import ConfigFile, Overrides, console, say
from embark_jax.cli.jax_setup import set_up_jax


def search(
    config_file: ConfigFile,
    overrides: Overrides = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of trials, those begun before included; each combination by "
            "default, or 20 where a value has a range.",
        ),
    ] = None,
    metric: Annotated[
        str,
        typer.Option(
            help="Metric of the validation set that decides which trial is best, such "
            "as auc, log_loss or hr@10; of the test set where all combinations are "
            "tried on data without a validation set."
        ),
    ] = "auc",
    workdir: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the search, which gets a folder for each run, and which "
            "the same command continues; runs/NAME-search by default."
        ),
    ] = None,
) -> None:
    """Train with several values of some keys: all combinations, or what does well.

    List values in the config or as KEY=VALUE, search.seed=[0,1,2], or give a range:
    search: {dense_optimizer.learning_rate: {low: 1e-4, high: 0.1, log: true}}
    """
    from embark_jax.config import reading

    config = reading.load(config_file, overrides or ())
    workdir = workdir or Path("runs") / f"{config.name}-search"
    set_up_jax(say)
    from embark_jax.run import search as searching

    searching.search(config_file, overrides or [], trials, metric, workdir, console)
    say(f"everything is in {workdir}")
