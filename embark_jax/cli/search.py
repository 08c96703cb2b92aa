"""``embark search``."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from embark_jax._base.config import ConfigError
from embark_jax.cli.arguments import ConfigFile, Jobs, Overrides, console, say
from embark_jax.cli.host_memory import keep_freed_memory
from embark_jax.config import reading


def search(
    config_file: ConfigFile,
    overrides: Overrides = None,
    trials: Annotated[
        int, typer.Option(min=1, help="Number of runs, with those that are finished.")
    ] = 20,
    metric: Annotated[
        Literal["auc", "log_loss"],
        typer.Option(help="Metric of the validation set that the best trial has."),
    ] = "auc",
    sampler: Annotated[
        Literal["tpe", "random"],
        typer.Option(help="tpe prefers what did well before; random does not look."),
    ] = "tpe",
    workdir: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the search, which gets one for each trial; "
            "runs/NAME-search-TIME unless given."
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the search in --workdir; finished trials are kept.",
        ),
    ] = False,
    jobs: Jobs = 1,
) -> None:
    """Look for the best values among those that a config's search names.

    In the config: search: {dense_optimizer.learning_rate: {low: 1e-4, high: 0.1, log:
    true}, train.batch_size: {choose: [256, 512]}}
    """
    if resume and workdir is None:
        raise typer.BadParameter("--resume needs the --workdir of the search")
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError(
            "embark search needs Optuna, which is not installed: "
            "pip install 'embark_jax[search]'"
        )
    config = reading.load(config_file, overrides or ())
    keep_freed_memory()
    from embark_jax.run.search import BEST, run_search

    if workdir is None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        workdir = Path("runs") / f"{config.name}-search-{stamp}"
    run_search(
        *(config_file, overrides or (), workdir, trials, metric, sampler, resume),
        *(console, jobs),
    )
    say(f"everything is in {workdir}; the best config: {workdir / BEST}")
