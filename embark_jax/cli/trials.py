"""``embark sweep`` and ``embark search``: several runs of one config."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from embark_jax._base.config import ConfigError
from embark_jax.cli.arguments import ConfigFile, Jobs, Overrides, console, say
from embark_jax.cli.host_memory import keep_freed_memory
from embark_jax.config import reading
from embark_jax.plans.metrics import MetricName
from embark_jax.plans.options import Sampler

if TYPE_CHECKING:
    from embark_jax.run.trials import Study

Workdir = Annotated[
    Path | None,
    typer.Option(
        help="Folder that gets a folder for each run; runs/NAME-COMMAND-TIME by "
        "default."
    ),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Continue in --workdir; finished runs are kept."),
]


def sweep(
    config_file: ConfigFile,
    overrides: Overrides = None,
    workdir: Workdir = None,
    resume: Resume = False,
    jobs: Jobs = 1,
) -> None:
    """Train with every combination of the values that a config's sweep lists.

    List values in the config, or as KEY=VALUE: sweep.seed=[0,1,2]
    sweep.train.steps=[100,200]
    """
    _check_resumed(resume, workdir)
    reading.load(config_file, overrides or ())
    keep_freed_memory()
    from embark_jax.run.sweep import Sweep

    folder = _run(Sweep(config_file, overrides or ()), workdir, resume, jobs)
    say(f"everything is in {folder}")


def search(
    config_file: ConfigFile,
    overrides: Overrides = None,
    trials: Annotated[
        int, typer.Option(min=1, help="Number of trials, finished ones included.")
    ] = 20,
    metric: Annotated[
        MetricName,
        typer.Option(
            help="Metric of the validation set that decides which trial is best."
        ),
    ] = "auc",
    sampler: Annotated[
        Sampler,
        typer.Option(help="tpe prefers what did well before; random does not look."),
    ] = "tpe",
    workdir: Workdir = None,
    resume: Resume = False,
    jobs: Jobs = 1,
) -> None:
    """Look for the best values among those that a config's search names.

    In the config: search: {dense_optimizer.learning_rate: {low: 1e-4, high: 0.1, log:
    true}, train.batch_size: {choose: [256, 512]}}
    """
    _check_resumed(resume, workdir)
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError(
            "embark search needs Optuna, which is not installed: "
            "pip install 'embark_jax[search]'"
        )
    reading.load(config_file, overrides or ())
    keep_freed_memory()
    from embark_jax.run.search import BEST, Search

    study = Search(config_file, overrides or (), trials, metric, sampler, console)
    folder = _run(study, workdir, resume, jobs)
    say(f"everything is in {folder}; the best config: {folder / BEST}")


def _check_resumed(resume: bool, workdir: Path | None) -> None:
    if resume and workdir is None:
        raise typer.BadParameter("--resume needs the --workdir of what it continues")


def _run(study: Study, workdir: Path | None, resume: bool, jobs: int) -> Path:
    from embark_jax.run.trials import run_trials

    if workdir is None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        workdir = Path("runs") / f"{study.config.name}-{study.kind}-{stamp}"
    run_trials(study, workdir, resume, console, jobs)
    return workdir
