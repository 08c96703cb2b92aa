"""One training run, from config to test metrics; ``loop`` has its steps."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
from embark_kernels import availability
from rich.console import Console

from embark_jax.checkpoint import Checkpointer
from embark_jax.checkpoint.errors import OtherExperimentError
from embark_jax.config import ExperimentConfig
from embark_jax.data import BatchChecker
from embark_jax.launch.agreement import of_process_0, total
from embark_jax.launch.processes import make_host_devices
from embark_jax.launch.stopping import StoppedError, stopping
from embark_jax.plans.plan import Plan
from embark_jax.report.display import (
    say,
    say_at_end,
    show_result,
)
from embark_jax.report.summary import overview
from embark_jax.run import experiment, history, initial
from embark_jax.run.early_stopping import EarlyStopping, Plateau
from embark_jax.run.evaluation import (
    counts,
    of_last_window,
    on_test_set,
)
from embark_jax.run.experiment import Experiment
from embark_jax.run.folder import RunFolder
from embark_jax.run.logs import MetricsLog
from embark_jax.run.loop import Loop
from embark_jax.run.page import REPORT, reported
from embark_jax.run.planning import why_plain_xla
from embark_jax.run.profile import StepProfile
from embark_jax.run.trackers import open_tracker
from embark_jax.train.outcome import NonFiniteLossError
from embark_jax.train.trainer import Trainer


def train(
    config: ExperimentConfig,
    workdir: Path,
    resume: bool,
    console: Console,
    plan_file: Path | None = None,
    profile_steps: tuple[int, int] | None = None,
) -> dict[str, Any] | None:
    """Trains, evaluates on the test set, and leaves everything in ``workdir``.

    SIGTERM and Ctrl-C end it early, with a checkpoint to resume from.

    Args:
      config: experiment config.
      workdir: folder that gets ``config.yaml``, ``configs/``, ``encoding/``,
        ``plan.json``, ``report.html``, ``metrics.jsonl``, TensorBoard events and
        ``checkpoints/``; ``profile/``, too, if steps are profiled. It may lie in a
        bucket, which gets all but the checkpoints before each of them and at the end.
      resume: whether to continue from the newest checkpoint there, if there is one.
      console: console that shows an overview of the plan, progress and results.
      plan_file: plan in JSON to train with; None makes a plan.
      profile_steps: numbers, from 1, of the first and the last step to trace.

    Returns:
      The last record of ``metrics.jsonl``: the test metrics. None if it was asked to
      end, even as late as when it finished: whoever has more to train ends, too.

    Raises:
      FileExistsError: if ``workdir`` already holds a run and ``resume`` is false.
      OSError, StorageError: if it cannot be written to.
      ConfigError, DataError, CheckpointError: if config, plan, data or the run to be
        resumed do not fit together; that run is then as it was.
      NonFiniteLossError: if a loss is not finite.
    """
    try:
        return _run(config, workdir, resume, console, plan_file, profile_steps)
    except KeyboardInterrupt:  # outside training, where ``stopping`` holds it back
        say(console, "no step was under way: nothing is lost")
        raise


def _run(
    config: ExperimentConfig,
    workdir: Path,
    resume: bool,
    console: Console,
    plan_file: Path | None,
    profile_steps: tuple[int, int] | None,
) -> dict[str, Any] | None:
    make_host_devices(config.mesh.devices)
    main = jax.process_index() == 0  # process 0 alone writes what one process can
    folder = RunFolder(workdir)
    if main:
        folder.open(resume)
    files = folder.files
    setup = experiment.build(config, plan_file)
    first = of_process_0(initial.first_step(config, files, resume))
    setup = dataclasses.replace(setup, first_step=first)
    profile = StepProfile(files, profile_steps, functools.partial(say, console))
    profile.check(first, setup.steps)
    if jax.process_count() > 1:  # hosts may differ, and their plans with them
        plan = Plan.from_json(of_process_0(setup.plan.to_json()))
        setup = dataclasses.replace(setup, plan=plan)
    console.print(overview(setup.plan), markup=False, highlight=False)
    why_not_kernels = unused_kernels(config)
    if main:
        for warning in [*setup.scale_warnings(), *setup.room_warnings()]:
            say(console, f"warning: {warning}")
        if why_not_kernels:
            say(console, f"lookups and updates run in plain XLA: {why_not_kernels}")

    trainer = setup.trainer()
    trainer.growth.report = lambda grown: say(console, grown) if main else None
    check = trainer.check
    with Checkpointer(
        folder.checkpoints,
        setup.identity | setup.data_order,
        config.train.keep_checkpoints,
        config.train.checkpoint_memory,
        functools.partial(say, console),
    ) as checkpoints:
        loaded = resume and of_process_0(checkpoints.steps)
        if config.train.init_from is not None and not loaded:
            initial.start(setup, trainer, files, functools.partial(say, console))
        if resume:
            _resume(setup, files, trainer, check, checkpoints, console)
            profile.check(trainer.step, setup.steps)
        if main:
            history.record(files, config, trainer.step)
            setup.save_encoding(files)
            (files / "plan.json").write_text(setup.plan.to_json())
            say(console, f"the plan with reasons, later curves: {workdir / REPORT}")
        settings = config.model_dump(mode="json")
        trackers = [
            open_tracker(service, files, settings)
            for service in config.train.trackers
            if main
        ]
        with (
            folder.published() if main else contextlib.nullcontext(),
            MetricsLog(files, trainer.step, main, trackers) as log,
            reported(files, setup.plan) if main else contextlib.nullcontext(),
            stopping(functools.partial(say_at_end, console)) as stop,
        ):
            past = checkpoints.evaluations  # verified, which the log is not
            early = EarlyStopping(config.train.early_stopping, past)
            plateau = Plateau(config.train.plateau, past)
            loop = Loop(
                setup,
                trainer,
                checkpoints,
                folder,
                log,
                console,
                stop,
                early,
                plateau,
                profile,
            )
            if plateau.factor < 1:
                loop.lower_rates()
            checkpoints.best_step = early.best_step
            try:
                with profile:
                    loop.run()
                last = trainer.step
                if early.ended:
                    say(console, f"{early}: training ends at step {last:,}")
                if early.best_step not in (None, last):
                    trainer.load(checkpoints, early.best_step)
                if setup.windows is None:
                    metrics = on_test_set(setup, trainer, stop.during)
                else:
                    metrics = of_last_window(checkpoints.evaluations)
                record = {"final": True, **metrics}
            except StoppedError:
                where = folder.checkpoints / str(checkpoints.steps[-1])
                say(
                    console,
                    f"stopped at step {trainer.step:,} of {setup.steps:,}, "
                    f"with a checkpoint to --resume from: {where}",
                )
                return None
            except NonFiniteLossError as error:
                written = checkpoints.steps[-1:]
                where = folder.checkpoints / str(*written) if written else "none"
                raise NonFiniteLossError(
                    f"{error}\nnewest checkpoint (not verified): {where}"
                ) from None
            record["recompilations"] = trainer.recompilations
            record |= counts("bad_ids", total(check.bad_ids))
            record |= counts("missing_dense", setup.description.missing_dense)
            if early.best_step is not None:
                record["best_step"] = early.best_step
            log.write(last, record)
    show_result(record, console)
    return None if stop.requested else record


def _resume(
    setup: Experiment,
    files: Path,
    trainer: Trainer,
    check: BatchChecker,
    checkpoints: Checkpointer,
    console: Console,
) -> None:
    """Loads the newest good checkpoint, if there is one, and says what is new.

    Raises:
      OtherExperimentError: if it is of another model, or of other data.
    """
    main, changed = jax.process_index() == 0, []
    if of_process_0(checkpoints.steps):
        if main:
            changed = history.changes(files, setup.config)
        try:
            bad_ids = trainer.load(checkpoints)
        except OtherExperimentError as error:
            raise OtherExperimentError(
                f"{error}\n--resume goes on with the model and the data of the run "
                "(data.files is a digest of prepared data); to train on others, begin "
                "a run in another --workdir"
            ) from None
        if main:  # process 0 counts for all
            check.bad_ids = bad_ids
        if setup.windows is not None:
            setup.windows.resume(checkpoints.evaluations, trainer.step, files)
        how = "resumed"
    else:
        how = "no checkpoint yet: begins"
    say(console, f"{how} at step {trainer.step:,} of {setup.steps:,}")
    for change in changed:
        say(console, f"  {change}")


def unused_kernels(config: ExperimentConfig) -> str:
    """Returns why GPU kernels that can run here are not used; "" if they are, cannot
    run, or the config names an implementation. All processes must call this."""
    reason = why_plain_xla() if config.embedding.kernels == "auto" else ""
    return "" if availability()["mosaic_gpu"] else reason
