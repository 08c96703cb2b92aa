"""``embark train`` and ``embark evaluate``."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated

import typer

from embark_jax.cli.arguments import (
    ConfigFile,
    Overrides,
    Step,
    TrustCode,
    console,
    say,
)
from embark_jax.cli.errors import show
from embark_jax.cli.jax_setup import set_up_jax


def train(
    config_file: ConfigFile,
    overrides: Overrides = None,
    workdir: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder that the run writes to, also s3:// or gs://; runs/NAME-TIME "
            "by default.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Resume the run in --workdir, if there is one."),
    ] = False,
    plan: Annotated[
        Path | None,
        typer.Option(help="Train with this plan, which `embark plan --out` wrote."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Do everything up to the first step, and say what the run takes and "
            "writes; for a fleet that is not here compile the step for its GPUs.",
        ),
    ] = False,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="FROM:TO",
            help="Trace these steps, both included, into profile/ of the run's folder.",
        ),
    ] = None,
    distributed: Annotated[
        bool,
        typer.Option(
            "--distributed",
            help="Run as one of several processes that train together. Slurm, "
            "Kubernetes, Open MPI or the next three options number the processes.",
        ),
    ] = False,
    coordinator: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            envvar="EMBARK_COORDINATOR",
            help="Address of process 0, with a free port.",
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(envvar="EMBARK_PROCESSES", help="Number of processes."),
    ] = None,
    process_id: Annotated[
        int | None,
        typer.Option(
            envvar="EMBARK_PROCESS_ID", help="Number of this process, from 0."
        ),
    ] = None,
) -> None:
    """Train a model and evaluate it on the test set."""
    if not distributed and ((coordinator, processes, process_id) != (None, None, None)):
        raise typer.BadParameter(
            "--coordinator, --processes and --process-id need --distributed"
        )
    if workdir is None and (resume or distributed):
        raise typer.BadParameter(
            "--resume needs the --workdir of the run"
            if resume
            else "--distributed needs a --workdir, the same for all processes"
        )
    from embark_jax._base.config import ConfigError
    from embark_jax.config import reading

    profile_steps = None if profile is None else _steps_of(profile)
    config = reading.load(config_file, overrides or ())
    if config.search:
        raise ConfigError(
            f"search has values of {', '.join(config.search)}: run embark search, or "
            "add search=null to train without them"
        )
    set_up_jax(say)
    from embark_jax.run import training

    if workdir is None:
        workdir = f"runs/{config.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    if dry_run:
        from embark_jax.run.dry_run import dry_run as try_out

        try_out(config, workdir, console, plan)
        return
    if not distributed:
        training.train(config, workdir, resume, console, plan, profile_steps)
    else:
        import jax

        from embark_jax.launch import processes as launched

        with launched.ending_at_once(show):
            launched.join(config, coordinator, processes, process_id)
            console.quiet = jax.process_index() != 0
            training.train(config, workdir, resume, console, plan, profile_steps)
    say(f"everything is in {workdir}")


def _steps_of(text: str) -> tuple[int, int]:
    """Returns the first and the last step of FROM:TO."""
    numbers = re.fullmatch(r"([0-9]{1,18}):([0-9]{1,18})", text)
    first, last = map(int, numbers.groups()) if numbers else (0, 0)
    if not 1 <= first <= last:
        from embark_jax._base.config import ConfigError

        raise ConfigError(f"--profile {text}: must be FROM:TO, such as 20:29")
    return first, last


def evaluate(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="The folder of a run, or one of its checkpoints."
        ),
    ],
    overrides: Overrides = None,
    step: Step = None,
    group_by: Annotated[
        str | None,
        typer.Option(
            help="Feature, such as user, whose groups the ranking metrics rank within."
        ),
    ] = None,
    k: Annotated[
        int,
        typer.Option(
            "--k", min=1, help="Cut-off of NDCG and Recall: the K best of each group."
        ),
    ] = 10,
    trust_code: TrustCode = False,
) -> None:
    """Evaluate a checkpoint on the test set; KEY=VALUE may name another mesh."""
    set_up_jax(say)
    from embark_jax.report.display import show_result
    from embark_jax.run import evaluation
    from embark_jax.run.loading import load_run

    setup, trainer = load_run(run, overrides or (), step=step, trust_code=trust_code)
    groups = None if group_by is None else evaluation.Groups(group_by, k)
    record = evaluation.on_test_set(setup, trainer, groups=groups)
    show_result(record, console)
