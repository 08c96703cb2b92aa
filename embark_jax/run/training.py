"""One training run, from config to test metrics.

Its loop trains from one stop of its callbacks to the next: those evaluate, save, log
and trace.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any

import jax
from embark_kernels import availability
from rich.console import Console

from embark_jax.cache.row_store import StoreError
from embark_jax.checkpoint import Checkpointer
from embark_jax.checkpoint.errors import OtherExperimentError
from embark_jax.config import ExperimentConfig
from embark_jax.data import DataError
from embark_jax.launch.agreement import from_process_0, total
from embark_jax.launch.processes import make_host_devices
from embark_jax.launch.stopping import StoppedError, stopping
from embark_jax.models.retrieval import RetrievalModel
from embark_jax.report.display import say, say_at_end, show_result
from embark_jax.report.page import plan_html, run_page
from embark_jax.report.summary import overview
from embark_jax.run import experiment, initial
from embark_jax.run.callbacks import Callback, Evaluation, Run, Saving, StepLog
from embark_jax.run.evaluation import counts, last_window_metrics, on_test_set
from embark_jax.run.experiment import Experiment
from embark_jax.run.folder import PLAN, RunFolder
from embark_jax.run.logs import MetricsLog, read_metrics
from embark_jax.run.planning import why_plain_xla
from embark_jax.run.profile import StepProfile, traces
from embark_jax.train.trainer import Trainer

REPORT = "report.html"


def train(
    config: ExperimentConfig,
    workdir: str | Path,
    resume: bool,
    console: Console,
    plan_file: Path | None = None,
    profile_steps: tuple[int, int] | None = None,
) -> dict[str, Any] | None:
    """Trains, evaluates on the test set, and leaves everything in ``workdir``.

    SIGTERM and Ctrl-C end it early, with a checkpoint to resume from.

    Args:
      config: experiment config.
      workdir: folder that gets ``config.yaml``, ``encoding/``,
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
    tell = functools.partial(say, console)
    make_host_devices(config.mesh.devices)
    folder = RunFolder(workdir)
    if jax.process_index() == 0:
        folder.open(resume)
    first = from_process_0(initial.first_step(config, folder.files, resume))
    setup = experiment.build(config, plan_file, first_step=first)
    profile = StepProfile(folder.files, profile_steps, tell)
    profile.check(first, setup.steps)
    _introduce(setup, console)
    trainer = setup.trainer()
    if trainer.cached is not None:
        trainer.cached.report = tell
    if isinstance(trainer.model, RetrievalModel):
        if config.train.retrieval is None:
            tell("train.retrieval={} measures HR@10 and NDCG@10 over all items, too")
        for name in experiment.of_the_event(trainer.model, setup.description):
            tell(
                f"warning: {name} is of the event whose {trainer.model.item} is to be "
                "found: if it tells of the item, hit rates are too high; prepare the "
                f"data without it in history.columns, and ignore=[{name}]"
            )
    with Checkpointer(
        folder.checkpoints,
        setup.identity,
        config.train.keep_checkpoints,
        config.train.checkpoint_memory,
        tell,
    ) as checkpoints:
        if not (resume and _resumed(setup, trainer, folder, checkpoints, tell)):
            initial.start(setup, trainer, folder.files, tell)
        profile.check(trainer.step, setup.steps)
        tell(f"plan and curves: {folder.path / REPORT}")
        with (
            outputs(folder, setup, trainer.step) as log,
            stopping(functools.partial(say_at_end, console)) as stop,
        ):
            run = Run(setup, trainer, checkpoints, folder, log, console, stop)
            evaluation = Evaluation(run)
            try:
                train_steps(run, evaluation, profile)
                record = test(run, evaluation.improvement.best_step)
            except StoppedError:
                where = folder.checkpoints / str(checkpoints.steps[-1])
                tell(
                    f"stopped at step {trainer.step:,} of {setup.steps:,}, "
                    f"with a checkpoint to --resume from: {where}"
                )
                return None
    show_result(record, console)
    return None if stop.requested else record


def train_steps(run: Run, evaluation: Evaluation, profile: StepProfile) -> None:
    """Trains to the last step and saves a checkpoint there.

    Raises:
      StoppedError: if the run is asked to end; there is a checkpoint of that step.
    """
    trainer, improvement, steps = run.trainer, evaluation.improvement, run.setup.steps
    step_log, saving = StepLog(run), Saving(run, improvement)
    last_two: list[Callback] = [evaluation, saving]
    if run.setup.windows is not None:
        # A window's checkpoint is of before the evaluation on the next one.
        last_two.reverse()
    callbacks = [profile, step_log, *last_two]
    try:
        with step_log.progress, profile:
            evaluation.at_stop(trainer.step)  # a run that was stopped in one resumes it
            while not improvement.ended and trainer.step < steps:
                stops = [each.next_stop(trainer.step) for each in callbacks]
                goal = min(filter(None, [steps, *stops]))
                _train_to(goal, run, callbacks)
    except StoppedError:
        step_log.record(trainer.step)
        saving.save_once()
        raise
    except (DataError, StoreError):
        # Of several processes, this one alone may know of the error.
        if jax.process_count() == 1 and trainer.step and saving.save_once():
            run.say(f"a checkpoint holds all {trainer.step:,} good steps")
        raise
    if improvement.ended:
        run.say(f"{improvement}: training ends at step {trainer.step:,}")


def _train_to(goal: int, run: Run, callbacks: list[Callback]) -> None:
    """Trains up to a step, unless the run is asked to end before."""
    trainer = run.trainer
    jax.block_until_ready(trainer.state)
    for callback in callbacks:
        callback.begin(trainer.step)
    for result in trainer.iterate(run.setup.training_data, goal, run.stop.before):
        for callback in callbacks:
            callback.add(result)
    jax.block_until_ready(trainer.state)
    if trainer.step < goal:
        raise StoppedError
    for callback in callbacks:
        callback.at_stop(goal)


def test(run: Run, best_step: int | None) -> dict[str, Any]:
    """Tests the best step, or the last, and returns and logs the last record.

    Raises:
      StoppedError: if the run is asked to end.
    """
    setup, trainer, last = run.setup, run.trainer, run.trainer.step
    if best_step not in (None, last):
        trainer.load(run.checkpoints, best_step)
    if setup.windows is None:
        metrics = on_test_set(setup, trainer, run.stop.during)
    else:
        metrics = last_window_metrics(run.checkpoints.evaluations)
    record = {
        "final": True,
        **metrics,
        "recompilations": trainer.recompilations,
        **counts("bad_ids", total(trainer.check.bad_ids)),
        **counts("missing_dense", setup.description.missing_dense),
    }
    if best_step is not None:
        record["best_step"] = best_step
    run.log.write(last, record)
    return record


def _introduce(setup: Experiment, console: Console) -> None:
    """Shows the plan, and what a user should know before hours of training."""
    console.print(overview(setup.plan), markup=False, highlight=False)
    reason = ""
    if setup.config.embedding.kernels == "auto":
        reason = why_plain_xla()  # all processes find out
    if reason and not availability()["mosaic_gpu"]:
        say(console, f"lookups and updates run in plain XLA: {reason}")


def _resumed(
    setup: Experiment,
    trainer: Trainer,
    folder: RunFolder,
    checkpoints: Checkpointer,
    tell: Callable[[str], None],
) -> bool:
    """Loads the newest good checkpoint, and says what is new; returns whether there is
    one.

    Raises:
      OtherExperimentError: if it is of another model, or of other data.
    """
    if not from_process_0(checkpoints.steps):
        tell(
            f"no checkpoint yet: begins at step {setup.first_step:,} of {setup.steps:,}"
        )
        return False
    main = jax.process_index() == 0
    changed = folder.changes(setup.config) if main else []
    try:
        bad_ids = trainer.load(checkpoints)
    except OtherExperimentError as error:
        raise OtherExperimentError(
            f"{error}\n--resume goes on with the model and the data of the run "
            "(data.files and values are digests of prepared data); to train on others, "
            f"begin a run in another --workdir; train.init_from={folder.path} goes on "
            "from this model"
        ) from None
    if main:  # process 0 counts for all
        trainer.check.bad_ids = bad_ids
    tell(f"resumed at step {trainer.step:,} of {setup.steps:,}")
    for change in changed:
        tell(f"  {change}")
    return True


@contextlib.contextmanager
def outputs(folder: RunFolder, setup: Experiment, step: int) -> Iterator[MetricsLog]:
    """Gives the log of a run that goes on from ``step``, and writes all else: the
    report with its plan at the beginning, and with curves, metrics and traces, too,
    when the run ends or is stopped. Process 0 writes; the others' logs go nowhere."""
    if jax.process_index() != 0:
        with MetricsLog(folder.files, writes=False) as log:
            yield log
        return
    files = folder.files
    folder.save_config(setup.config)
    if setup.description.save_encoding is not None:  # of a user's own files
        setup.description.save_encoding(files)
    (files / PLAN).write_text(setup.plan.to_json())
    plan = plan_html(setup.plan, in_full=True)

    def write_report() -> None:
        """Writes the page of the run, with what its log has so far."""
        links = [path.relative_to(files).as_posix() for path in traces(files)]
        text = run_page(files.name, read_metrics(files), plan, links, _about(setup))
        (files / REPORT).write_text(text, "utf-8")

    loggers = setup.config.train.loggers
    with folder.published(), MetricsLog(files, step, loggers=loggers) as log:
        write_report()
        yield log
        write_report()


def _about(setup: Experiment) -> str:
    """Says in HTML of what model and config a page is, and how its times compare."""
    config = setup.config
    facts = (
        f"{datetime.date.today()}: model {config.model.kind}, rows updated by "
        f"{config.embedding.optimizer.kind}, dense layers by "
        f"{config.dense_optimizer.kind}, batch {config.train.batch_size:,}, seed "
        f"{config.seed}; "
    )
    times = (
        "A measured step lasts batch / samples per s, with dense layers, input and "
        "host; the plan's step is of the embeddings alone, on the plan's fleet"
    )
    link = '<a href="config.yaml">config.yaml</a>'
    return f"<p>{escape(facts)}{link}. {times}.</p>"
