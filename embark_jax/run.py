"""One training run from config to last step: read this file to follow it all.

Between two *stops* (an evaluation, a checkpoint, the end) the loop only applies batches
and logs; at a stop all steps have landed.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from embark_jax import config_io, experiment
from embark_jax.config import ExperimentConfig
from embark_jax.data import BatchChecker
from embark_jax.experiment import Experiment
from embark_jax.train.checkpoint import Checkpointer, CheckpointError
from embark_jax.train.logs import MetricsLog
from embark_jax.train.metrics import EvalAccumulator, Metrics, evaluate
from embark_jax.train.trainer import NonFiniteLossError, StepResult, Trainer


def train(
    config: ExperimentConfig, workdir: Path, resume: bool, console: Console
) -> dict[str, Any]:
    """Trains, evaluates on the test set, and leaves everything in ``workdir``.

    Args:
      config: the experiment.
      workdir: gets ``config.yaml``, ``plan.json``, ``metrics.jsonl``, TensorBoard
        events and ``checkpoints/``.
      resume: continue from the newest checkpoint there, if there is one.
      console: where plan, progress and results are shown.

    Returns:
      The last record of ``metrics.jsonl``: the test metrics.

    Raises:
      FileExistsError: if ``workdir`` already holds a run and ``resume`` is false.
    """
    metrics_file = workdir / "metrics.jsonl"
    if metrics_file.exists() and not resume:
        raise FileExistsError(
            f"{workdir} already holds a run: pass --resume to continue it, or another "
            "--workdir"
        )
    experiment.make_host_devices(config)
    setup = experiment.build(config)
    console.print(setup.plan)

    workdir.mkdir(parents=True, exist_ok=True)
    config_io.save(config, workdir / "config.yaml")
    (workdir / "plan.json").write_text(setup.plan.to_json())

    trainer, check = setup.trainer(), setup.checker()
    checkpoints = Checkpointer(
        workdir / "checkpoints", setup.identity, config.train.keep_checkpoints
    )
    if resume and checkpoints.latest_step is not None:
        trainer.restore(checkpoints.restore(trainer.state, trainer.embeddings))
        console.print(f"resumed at step {trainer.step:,}")

    with MetricsLog(workdir, resume_at=trainer.step) as log:
        try:
            _train_to_the_end(setup, trainer, check, checkpoints, log, console)
        except NonFiniteLossError as error:
            good = checkpoints.latest_step
            where = "none" if good is None else workdir / "checkpoints" / str(good)
            raise NonFiniteLossError(
                f"{error}\nlast good checkpoint: {where}"
            ) from None
        finally:
            checkpoints.close()
        record = {"final": True, **_result(setup, trainer, check)}
        log.write(trainer.step, record)
    _show_result(record, console)
    return record


def _train_to_the_end(
    setup: Experiment,
    trainer: Trainer,
    check: BatchChecker,
    checkpoints: Checkpointer,
    log: MetricsLog,
    console: Console,
) -> None:
    options = setup.config.train
    with _progress(console) as progress:
        task = progress.add_task(
            "train", total=options.steps, completed=trainer.step, shown="compiling"
        )
        window = _Window()
        while trainer.step < options.steps:
            stop = _next_stop(setup.config, trainer.step)
            for result in trainer.fit(setup.dataset, stop, check):
                window.add(result)
                if result.step % options.log_every == 0 or result.step == stop:
                    record = window.close()
                    log.write(result.step, record)
                    progress.update(task, completed=result.step, shown=_shown(record))
            if options.eval_every and stop % options.eval_every == 0:
                scores = _named("test", evaluate_on_test(setup, trainer, check))
                log.write(stop, scores)
                progress.console.print(
                    f"step {stop:,}: test AUC {scores['test_auc']:.5f}"
                )
            if stop == options.steps or (
                options.checkpoint_every and stop % options.checkpoint_every == 0
            ):
                checkpoints.save(trainer.state, stop, trainer.embeddings)
            window.stop()


def _next_stop(config: ExperimentConfig, step: int) -> int:
    """The next step after ``step`` at which all steps must have landed."""
    options = config.train
    intervals = filter(None, (options.eval_every, options.checkpoint_every))
    return min(options.steps, *(step // every * every + every for every in intervals))


class _Window:
    """The steps since the last record."""

    def __init__(self):
        self._results: list[StepResult] = []
        self._timed_steps = 0
        self._since: float | None = None

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
        samples_per_s = samples / (now - self._since) if samples else None
        self._since, self._timed_steps = now, 0
        logits = np.concatenate([np.asarray(result.logits) for result in results])
        labels = np.concatenate([result.labels for result in results])
        return {
            "loss": float(np.mean([result.loss for result in results])),
            "train_auc": evaluate(labels, logits).auc,
            "samples_per_s": samples_per_s,
            **{
                f"capacity_used/{name}": max(result.used[name] for result in results)
                for name in results[0].used
            },
        }


def evaluate_on_test(
    setup: Experiment, trainer: Trainer, check: BatchChecker
) -> Metrics:
    """Metrics over the whole test set."""
    batches = map(check, setup.dataset.test_batches(setup.config.train.batch_size))
    scores = EvalAccumulator()
    for batch, logits in trainer.predict(batches):
        scores.add(batch.labels, logits, len(batch))
    return scores.result()


def evaluate_checkpoint(
    config: ExperimentConfig, checkpoint: Path, console: Console
) -> dict[str, Any]:
    """Test metrics of a checkpoint, on the config's own mesh and plan.

    Args:
      config: must describe the model that the checkpoint holds.
      checkpoint: a run's ``checkpoints`` folder, for the newest, or one in it.
      console: where the result is shown.
    """
    experiment.make_host_devices(config)
    setup = experiment.build(config)
    folder, step = checkpoint, None
    if checkpoint.name.isdigit():
        folder, step = checkpoint.parent, int(checkpoint.name)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder")
    trainer, check = setup.trainer(), setup.checker()
    checkpoints = Checkpointer(folder, setup.identity)
    trainer.restore(checkpoints.restore(trainer.state, trainer.embeddings, step))
    checkpoints.close()
    record = _result(setup, trainer, check)
    _show_result(record, console)
    return record


def _result(setup: Experiment, trainer: Trainer, check: BatchChecker) -> dict[str, Any]:
    """The test metrics, and what a reader needs to judge them."""
    record = _named("test", evaluate_on_test(setup, trainer, check))
    bayes_auc = setup.dataset.bayes_auc()
    if bayes_auc is not None:
        record["bayes_auc"] = bayes_auc
    record["recompilations"] = trainer.recompilations
    for name, count in check.bad_ids.items():
        if count:
            record[f"bad_ids/{name}"] = count
    return record


def _named(prefix: str, metrics: Metrics) -> dict[str, Any]:
    return {f"{prefix}_{k}": v for k, v in dataclasses.asdict(metrics).items()}


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
    for name, count in record.items():
        if name.startswith("bad_ids/"):
            console.print(f"feature {name[8:]}: {count:,} bad ids were mended")


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("step"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[shown]}"),
        TimeRemainingColumn(),
        console=console,
    )


def _shown(record: dict[str, Any]) -> str:
    parts = [f"loss {record['loss']:.4f}"]
    if record["train_auc"] is not None:
        parts.append(f"AUC {record['train_auc']:.4f}")
    if record["samples_per_s"] is not None:
        parts.append(f"{record['samples_per_s']:,.0f} samples/s")
    return "  ".join(parts)
