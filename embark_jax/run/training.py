"""One training run, from config to last step: this file shows all of it.

Between two *stops* (an evaluation, a checkpoint, either end of a profile, the end) the
loop only applies batches and logs; at a stop all steps have landed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
from embark_kernels import availability, why_plain_xla
from rich.console import Console

from embark_jax.cache.row_store import StoreError
from embark_jax.checkpoint import Checkpointer
from embark_jax.checkpoint.errors import OtherExperimentError
from embark_jax.config import ExperimentConfig, tasks_of
from embark_jax.data import BatchChecker, DataError
from embark_jax.launch.processes import of_process_0, total
from embark_jax.launch.stopping import Stop, StoppedError, stopping
from embark_jax.plans.plan import Plan
from embark_jax.report.display import (
    say,
    say_at_end,
    show_result,
    split_text,
    step_text,
)
from embark_jax.report.progress import step_progress
from embark_jax.report.summary import overview
from embark_jax.run import experiment, history, initial
from embark_jax.run.early_stopping import EarlyStopping, Plateau
from embark_jax.run.evaluation import (
    counts,
    held_out,
    of_last_window,
    on_split,
    on_test_set,
)
from embark_jax.run.experiment import Experiment
from embark_jax.run.folder import RunFolder
from embark_jax.run.logs import MetricsLog
from embark_jax.run.page import REPORT, reported
from embark_jax.run.profile import StepProfile
from embark_jax.run.trackers import open_tracker
from embark_jax.run.window import Window
from embark_jax.train.optimizers import build_optimizers
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
      workdir: folder that gets ``config.yaml``, ``configs/``, ``code/``, ``encoding/``,
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
    experiment.make_host_devices(config)
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
    if main:
        for warning in setup.scale_warnings():
            say(console, f"warning: {warning}")
        if reason := unused_kernels(config):
            say(console, f"lookups and updates run in plain XLA: {reason}")

    trainer = setup.trainer()
    trainer.growth.report = lambda growth: say(console, str(growth)) if main else None
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
            setup.save_sources(files)
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
            if log.set_aside:
                say(console, f"warning: {log.set_aside}")
            past = checkpoints.evaluations  # verified, which the log is not
            early = EarlyStopping(config.train.early_stopping, past)
            plateau = Plateau(config.train.plateau, past)
            if plateau.factor < 1:
                _lower_rates(setup, trainer, plateau)
            followers = early, plateau
            checkpoints.best_step = early.best_step
            try:
                with profile:
                    _train(
                        setup,
                        workdir,
                        trainer,
                        check,
                        checkpoints,
                        folder,
                        log,
                        console,
                        stop,
                        followers,
                        profile,
                    )
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
            setup.windows.resume(checkpoints.evaluations, trainer.step)
    say(console, f"resumed at step {trainer.step:,} of {setup.steps:,}")
    for change in changed:
        say(console, f"  {change}")


def _train(
    setup: Experiment,
    workdir: Path,
    trainer: Trainer,
    check: BatchChecker,
    checkpoints: Checkpointer,
    folder: RunFolder,
    log: MetricsLog,
    console: Console,
    stop: Stop,
    followers: tuple[EarlyStopping, Plateau],
    profile: StepProfile,
) -> None:
    """Trains to the last step and saves a checkpoint there; or raises ``StoppedError``
    and saves one where it stopped."""
    options = setup.config.train
    window = Window(tasks_of(setup.config.model), options.hot_batches)
    early, plateau = followers
    windows = setup.windows
    with step_progress(console=console) as progress:
        task = progress.add_task(
            "train", total=setup.steps, completed=trainer.step, shown="compiling"
        )

        def report():
            record = window.close()
            if trainer.cached is not None:
                record |= trainer.cached.figures()
            log.write(trainer.step, record)
            progress.update(task, completed=trainer.step, shown=step_text(record))
            if not console.is_terminal:
                say(console, f"step {trainer.step:,}: {step_text(record)}")

        def save():
            bad_ids = total(check.bad_ids)
            state = trainer.whole_state()
            if jax.process_index() == 0:
                folder.publish()  # who has the checkpoint has the metrics up to it
            checkpoints.save(state, trainer.step, trainer.embeddings, bad_ids)

        def evaluate():
            step = trainer.step
            try:
                split, batches = held_out(setup, step)
                record = on_split(setup, trainer, split, stop.during(batches))
            except StoppedError:
                if step not in checkpoints.steps:
                    save()
                raise
            if windows is not None:
                record |= windows.at(step).record
                if jax.process_index() == 0:
                    windows.save_encoding(step, workdir)
            log.write(step, record)
            checkpoints.evaluations.append({"step": step, **record})
            early.add(step, record)
            if plateau.add(step, record):
                _lower_rates(setup, trainer, plateau)
                rates = f"{plateau.factor:.3g} of what they were"
                say(progress.console, f"step {step:,}: learning rates: {rates}")
            checkpoints.best_step = early.best_step
            name = f"window {record['window']}: " if "window" in record else ""
            text = split_text(record, split)
            say(progress.console, f"step {step:,}: {name}{text}")

        def next_window_comes():
            """Waits for the next time window, and evaluates on it."""
            if windows is None or trainer.step < windows.end or not windows.wait(stop):
                return False
            evaluate()
            progress.update(task, total=setup.steps)
            return True

        # A run that was stopped in an evaluation begins with it when it is resumed.
        evaluated = {record["step"] for record in checkpoints.evaluations}
        if _evaluates_at(setup, trainer.step) and trainer.step not in evaluated:
            evaluate()
        while not early.ended:
            if trainer.step >= setup.steps and not next_window_comes():
                break
            goal = _next_stop(setup, trainer.step, profile.stops)
            profile.begin(trainer.step, trainer.state)
            try:
                for result in trainer.iterate(setup.training_data, goal, stop.before):
                    window.add(result)
                    if result.step % options.log_every == 0 or result.step == goal:
                        report()
            except (DataError, StoreError):
                # Of several processes, this one alone may know of the error.
                alone = jax.process_count() == 1
                if alone and trainer.step not in (0, *checkpoints.steps):
                    save()
                    say(console, f"a checkpoint holds all {trainer.step:,} good steps")
                raise
            profile.end(trainer.step, trainer.state)
            if trainer.step < goal:
                if not window.empty:
                    report()
                if trainer.step not in checkpoints.steps:
                    save()
                raise StoppedError
            if _evaluates_at(setup, goal):
                evaluate()
            due = options.checkpoint_every and goal % options.checkpoint_every == 0
            ends = early.ended or goal == setup.steps
            if due or ends or goal == early.best_step:
                save()
            window.stop()


def unused_kernels(config: ExperimentConfig) -> str:
    """Returns why GPU kernels that can run here are not used; "" if they are, cannot
    run, or the config names an implementation."""
    if config.embedding.kernels != "auto" or availability()["mosaic_gpu"]:
        return ""
    return why_plain_xla()


def _lower_rates(setup: Experiment, trainer: Trainer, plateau: Plateau) -> None:
    factor = plateau.factor
    trainer.use_optimizers(build_optimizers(setup.config, setup.steps, factor))


def _evaluates_at(setup: Experiment, step: int) -> bool:
    if (windows := setup.windows) is not None:
        return step < windows.end and windows.at(step).first == step
    every = setup.config.train.eval_every
    return bool(step and every and step % every == 0)


def _next_stop(setup: Experiment, step: int, others: tuple[int, ...]) -> int:
    """Returns the next step after ``step`` at which all steps must have landed."""
    options = setup.config.train
    intervals = filter(None, (options.eval_every, options.checkpoint_every))
    stops = [setup.steps, *(other for other in others if other > step)]
    if setup.windows is not None:
        stops.append(setup.windows.at(step).end)
    return min([*stops, *((step // every + 1) * every for every in intervals)])
