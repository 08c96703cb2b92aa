"""One training run from config to last step: read this file to follow it all.

Between two *stops* (an evaluation, a checkpoint, the end) the loop only applies batches
and logs; at a stop all steps have landed.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from embark_jax import config_io, experiment
from embark_jax.config import ExperimentConfig
from embark_jax.data import Batch, BatchChecker
from embark_jax.experiment import Experiment
from embark_jax.launch.processes import of_process_0, stopping_on_sigterm, total
from embark_jax.planner import Plan
from embark_jax.planner.html import page
from embark_jax.planner.summary import overview
from embark_jax.train.checkpoint import Checkpointer, CheckpointError
from embark_jax.train.logs import MetricsLog
from embark_jax.train.metrics import EvalAccumulator
from embark_jax.train.progress import step_progress
from embark_jax.train.trainer import NonFiniteLossError, StepResult, Trainer


def train(
    config: ExperimentConfig,
    workdir: Path,
    resume: bool,
    console: Console,
    plan_file: Path | None = None,
) -> dict[str, Any] | None:
    """Trains, evaluates on the test set, and leaves everything in ``workdir``.

    SIGTERM ends it early, with a checkpoint to resume from.

    Args:
      config: the experiment.
      workdir: gets ``config.yaml``, ``plan.json``, ``plan.html``, ``metrics.jsonl``,
        TensorBoard events and ``checkpoints/``.
      resume: continue from the newest checkpoint there, if there is one.
      console: where an overview of the plan, progress and results are shown.
      plan_file: a plan in JSON to train with; None makes one.

    Returns:
      The last record of ``metrics.jsonl``: the test metrics. None if SIGTERM ended it.

    Raises:
      FileExistsError: if ``workdir`` already holds a run and ``resume`` is false.
      ConfigError, DataError, CheckpointError: if config, plan, data or the run to be
        resumed do not fit together; that run is then as it was.
      NonFiniteLossError: if a loss is not finite.
    """
    experiment.make_host_devices(config)
    main = jax.process_index() == 0  # which alone writes what one process can
    if main and not resume:
        _check_unused(workdir)
    setup = experiment.build(config, plan_file)
    if jax.process_count() > 1:  # hosts may differ, and their plans with them
        plan = Plan.from_json(of_process_0(setup.plan.to_json()))
        setup = dataclasses.replace(setup, plan=plan)
    console.print(overview(setup.plan), markup=False, highlight=False)

    trainer = setup.trainer()
    check = trainer.check
    with Checkpointer(
        workdir / "checkpoints",
        setup.identity | setup.data_order,
        config.train.keep_checkpoints,
    ) as checkpoints:
        if resume:
            step = _resume(trainer, check, checkpoints)
            _say(console, f"resumed at step {step:,} of {config.train.steps:,}")
        if main:
            config_io.save(config, workdir / "config.yaml")
            (workdir / "plan.json").write_text(setup.plan.to_json())
            (workdir / "plan.html").write_text(page(setup.plan), "utf-8")
            _say(console, f"the whole plan, and why: {workdir / 'plan.html'}")
        with MetricsLog(workdir, resume_at=trainer.step, writes=main) as log:
            try:
                _train(setup, trainer, check, checkpoints, log, console)
            except NonFiniteLossError as error:
                good = checkpoints.steps[-1:]
                where = workdir / "checkpoints" / str(*good) if good else "none"
                raise NonFiniteLossError(
                    f"{error}\nlast good checkpoint: {where}"
                ) from None
            if trainer.step < config.train.steps:
                _say(console, f"stopped by SIGTERM at step {trainer.step:,}")
                return None
            record = {"final": True, **_result(setup, trainer)}
            record["recompilations"] = trainer.recompilations
            record |= _counts("bad_ids", total(check.bad_ids))
            log.write(trainer.step, record)
    _show_result(record, console)
    return record


def _check_unused(workdir: Path) -> None:
    for name in ("config.yaml", "plan.json", "metrics.jsonl", "checkpoints"):
        if (workdir / name).exists():
            raise FileExistsError(
                f"{workdir} already holds a run ({name}): pass --resume to continue "
                "it, or another --workdir"
            )


def _resume(trainer: Trainer, check: BatchChecker, checkpoints: Checkpointer) -> int:
    """Goes to the newest checkpoint, if there is one; returns its step."""
    if steps := of_process_0(checkpoints.steps):
        state, bad_ids = checkpoints.restore(
            trainer.state, trainer.embeddings, steps[-1]
        )
        trainer.restore(state)
        if jax.process_index() == 0:  # which goes on counting for all
            check.bad_ids = bad_ids
    return trainer.step


def _train(
    setup: Experiment,
    trainer: Trainer,
    check: BatchChecker,
    checkpoints: Checkpointer,
    log: MetricsLog,
    console: Console,
) -> None:
    """Trains to the last step, or until SIGTERM, and leaves a checkpoint there."""
    options = setup.config.train
    window = _Window()
    with step_progress(console=console) as progress, stopping_on_sigterm() as stopping:
        task = progress.add_task(
            "train", total=options.steps, completed=trainer.step, shown="compiling"
        )

        def report():
            record = window.close()
            log.write(trainer.step, record)
            progress.update(task, completed=trainer.step, shown=_shown(record))
            if not console.is_terminal:
                _say(console, f"step {trainer.step:,}: {_shown(record)}")

        def save():
            bad_ids = total(check.bad_ids)
            checkpoints.save(trainer.state, trainer.step, trainer.embeddings, bad_ids)

        while trainer.step < options.steps:
            stop = _next_stop(setup.config, trainer.step)
            for result in trainer.iterate(setup.dataset, stop, stopping):
                window.add(result)
                if result.step % options.log_every == 0 or result.step == stop:
                    report()
            if trainer.step < stop:
                if not window.empty:
                    report()
                if trainer.step not in checkpoints.steps:
                    save()
                return
            if options.eval_every and stop % options.eval_every == 0:
                split, batches = _held_out(setup)
                record = _record(setup, trainer, split, batches)
                log.write(stop, record)
                _say(progress.console, f"step {stop:,}: {_shown_split(record, split)}")
            if stop == options.steps or (
                options.checkpoint_every and stop % options.checkpoint_every == 0
            ):
                save()
            window.stop()


def _next_stop(config: ExperimentConfig, step: int) -> int:
    """The next step after ``step`` at which all steps must have landed."""
    options = config.train
    intervals = filter(None, (options.eval_every, options.checkpoint_every))
    return min([options.steps, *((step // every + 1) * every for every in intervals)])


class _Window:
    """The steps since the last record."""

    def __init__(self):
        self._results: list[StepResult] = []
        self._timed_steps = 0
        self._since: float | None = None

    @property
    def empty(self) -> bool:
        return not self._results

    def add(self, result: StepResult) -> None:
        self._results.append(result)
        if self._since is None:
            # The first step after a stop waited for a compilation or an evaluation.
            self._since = time.perf_counter()
        else:
            self._timed_steps += 1

    def stop(self) -> None:
        """Stops the clock until the next step."""
        self._since, self._timed_steps = None, 0

    def close(self) -> dict[str, float | None]:
        """The record of the window; the next one begins here."""
        results, self._results = self._results, []
        samples = self._timed_steps * len(results[0].labels)
        now = time.perf_counter()
        seconds = now - (self._since or now)
        samples_per_s = samples / seconds if samples else None
        self._since, self._timed_steps = now, 0
        scores = EvalAccumulator()
        for result in results:
            scores.add(result.labels, result.logits, len(result.labels))
        return {
            "loss": float(np.mean([result.loss for result in results])),
            "train_auc": scores.result().auc,
            "samples_per_s": samples_per_s,
            **{
                f"capacity_used/{name}": max(result.used[name] for result in results)
                for name in results[0].used
            },
        }


def evaluate_checkpoint(
    config: ExperimentConfig, checkpoint: Path, console: Console
) -> dict[str, Any]:
    """Test metrics of a checkpoint, on the config's own mesh and plan.

    Args:
      config: must describe the model that the checkpoint holds.
      checkpoint: a run's ``checkpoints`` folder, for the newest, or one in it.
      console: where the result is shown.

    Raises:
      ConfigError, DataError, CheckpointError: as ``train`` does.
    """
    folder, step = checkpoint, None
    if checkpoint.name.isdigit():
        folder, step = checkpoint.parent, int(checkpoint.name)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder")
    experiment.make_host_devices(config)
    setup = experiment.build(config)
    trainer = setup.trainer()
    with Checkpointer(folder, setup.identity, keep=None) as checkpoints:
        state, _ = checkpoints.restore(trainer.state, trainer.embeddings, step)
    trainer.restore(state)
    record = _result(setup, trainer)
    _show_result(record, console)
    return record


def _result(setup: Experiment, trainer: Trainer) -> dict[str, Any]:
    """The test metrics, and the best that any model could reach."""
    batches = setup.dataset.test_batches(setup.plan.batch_size)
    record = _record(setup, trainer, "test", batches)
    bayes_auc = setup.dataset.bayes_auc()
    return record if bayes_auc is None else record | {"bayes_auc": bayes_auc}


def _held_out(setup: Experiment) -> tuple[str, Iterator[Batch]]:
    """What is looked at during training: the validation set, or, of data that have
    none, the test set."""
    size = setup.plan.batch_size
    if (batches := setup.dataset.validation_batches(size)) is not None:
        return "validation", batches
    return "test", setup.dataset.test_batches(size)


def _record(
    setup: Experiment, trainer: Trainer, split: str, batches: Iterator[Batch]
) -> dict[str, Any]:
    """Metrics over a whole split, whose name is in theirs."""
    check = setup.checker()
    metrics = dataclasses.asdict(trainer.evaluate(batches, check))
    record = {f"{split}_{name}": value for name, value in metrics.items()}
    return record | _counts(f"{split}_bad_ids", check.bad_ids)


def _counts(prefix: str, bad_ids: Mapping[str, int]) -> dict[str, int]:
    return {f"{prefix}/{name}": n for name, n in bad_ids.items() if n}


def _show_result(record: dict[str, Any], console: Console) -> None:
    table = Table("test metric", "value")
    table.columns[1].justify = "right"
    for name, value in record.items():
        if name.startswith("test_") and value is not None:
            shown = f"{value:,}" if isinstance(value, int) else f"{value:.5f}"
            table.add_row(name.removeprefix("test_"), shown)
    if "bayes_auc" in record:
        table.add_row("best attainable auc", f"{record['bayes_auc']:.5f}")
    console.print(table)
    if record["test_auc"] is None:
        rule = "need labels of both 0 and 1, and no others"
        _say(console, f"AUC and accuracy are left out: they {rule}")
    for prefix, where in (("bad_ids/", "training"), ("test_bad_ids/", "the test set")):
        for name, count in record.items():
            if name.startswith(prefix):
                feature = name.removeprefix(prefix)
                _say(console, f"{where}: {count:,} bad ids of {feature!r} were mended")


def _say(console: Console, text: str) -> None:
    """Prints text as it is: one line, and brackets are no markup."""
    console.print(text, soft_wrap=True, markup=False, highlight=False)


def _shown(record: Mapping[str, Any]) -> str:
    parts = [f"loss {record['loss']:.4f}"]
    if record["train_auc"] is not None:
        parts.append(f"AUC {record['train_auc']:.4f}")
    if record["samples_per_s"] is not None:
        parts.append(f"{record['samples_per_s']:,.0f} samples/s")
    return "  ".join(parts)


def _shown_split(record: Mapping[str, Any], split: str) -> str:
    auc = record[f"{split}_auc"]
    return f"{split} loss {record[f'{split}_log_loss']:.5f}" + (
        "" if auc is None else f"  AUC {auc:.5f}"
    )
