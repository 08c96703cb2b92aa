"""What a run does besides training steps, each as a callback of its loop.

The loop trains from one *stop* to the next: the nearest that any callback asks for. At
a stop all steps are finished.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
from rich.console import Console

from embark_jax.checkpoint import Checkpointer
from embark_jax.config import TrainConfig, tasks_of
from embark_jax.launch.agreement import total
from embark_jax.launch.stopping import Stop
from embark_jax.report.display import (
    say,
    split_text,
    step_progress,
    step_text,
    undefined,
)
from embark_jax.run.early_stopping import Improvement
from embark_jax.run.evaluation import held_out, on_split
from embark_jax.run.experiment import Experiment
from embark_jax.run.figures import Figures
from embark_jax.run.folder import RunFolder
from embark_jax.run.logs import MetricsLog
from embark_jax.train.results import StepResult
from embark_jax.train.trainer import Trainer


class Run(NamedTuple):
    """What the callbacks of a run work with; ``stop`` says when it is asked to end."""

    setup: Experiment
    trainer: Trainer
    checkpoints: Checkpointer
    folder: RunFolder
    log: MetricsLog
    console: Console
    stop: Stop

    def say(self, text: str) -> None:
        """Shows a line."""
        say(self.console, text)

    @property
    def options(self) -> TrainConfig:
        return self.setup.config.train


class Callback:
    """A callback, which does nothing at any time; subclasses do something at some.

    All processes call theirs. At a stop, which any callback may ask for, all steps are
    finished and the trainer's state is that of the step; otherwise it may be up to two
    steps ahead. A run that is asked to end saves a checkpoint, and makes no stop.
    """

    def next_stop(self, step: int) -> int | None:
        """Returns the next step after this one at which this callback needs a stop."""
        return None

    def begin(self, step: int) -> None:
        """Called before steps after this one are trained."""

    def add(self, result: StepResult) -> None:
        """Called with each step, in order, once it is certain."""

    def at_stop(self, step: int) -> None:
        """Called at the stop of any callback: one of its own is a step at which its
        interval says so."""


def next_multiple(step: int, every: int | None) -> int | None:
    """Returns the next multiple of ``every`` after a step."""
    return (step // every + 1) * every if every else None


class StepLog(Callback):
    """Logs and shows figures of the steps, every ``train.log_every`` of them.

    Attributes:
      progress: the bar of steps, to be entered.
    """

    def __init__(self, run: Run):
        self._run = run
        tasks = tasks_of(run.setup.config.model)
        self._figures = Figures(tasks, run.options.hot_batches)
        self.progress = step_progress(console=run.console)
        self._bar = self.progress.add_task(
            "train",
            total=run.setup.steps,
            completed=run.trainer.step,
            shown="compiling",
        )

    def begin(self, step: int) -> None:
        self._figures.stop()

    def add(self, result: StepResult) -> None:
        self._figures.add(result)
        if result.step % self._run.options.log_every == 0:  # which needs no stop
            self.record(result.step)

    def at_stop(self, step: int) -> None:
        self.record(step)

    def record(self, step: int) -> None:
        """Logs and shows the figures of the steps since the last record."""
        if self._figures.empty:
            return
        run, record = self._run, self._figures.close()
        if run.trainer.cached is not None:
            record |= run.trainer.cached.figures()
        run.log.write(step, record)
        shown = step_text(record)
        self.progress.update(self._bar, completed=step, shown=shown)
        if not run.console.is_terminal:
            run.say(f"step {step:,}: {shown}")


class Evaluation(Callback):
    """Evaluates every ``train.eval_every`` steps, or before each time window, and does
    what early stopping and a plateau ask for.

    Attributes:
      improvement: whether the validation set still improves.
    """

    def __init__(self, run: Run):
        self._run = run
        self.improvement = Improvement(run.options, run.checkpoints.evaluations)
        if self.improvement.factor < 1:
            run.trainer.use_optimizers(run.setup.optimizers(self.improvement.factor))
        run.checkpoints.best_step = self.improvement.best_step
        self._explained: set[str] = set()

    def next_stop(self, step: int) -> int | None:
        windows = self._run.setup.windows
        if windows is not None:
            return windows.at(step).end
        return next_multiple(step, self._run.options.eval_every)

    def at_stop(self, step: int) -> None:
        """Evaluates if it is time, unless a run that was resumed has done so.

        Raises:
          StoppedError: if the run is asked to end meanwhile.
        """
        setup, every = self._run.setup, self._run.options.eval_every
        if any(record["step"] == step for record in self._run.checkpoints.evaluations):
            return
        if (windows := setup.windows) is not None:
            is_due = step < setup.steps and windows.at(step).first == step
        else:
            is_due = bool(step and every and step % every == 0)
        if is_due:
            self._evaluate(step)

    def _evaluate(self, step: int) -> None:
        run, improvement, window = self._run, self.improvement, ""
        split, read = held_out(run.setup, step)
        record = on_split(run.setup, run.trainer, split, read, run.stop.during)
        if run.setup.windows is not None:
            record |= run.setup.windows.at(step).record
            window = f"window {record['window']}: "
        run.log.write(step, record)
        evaluation = {"step": step, **record}
        run.checkpoints.evaluations.append(evaluation)
        is_lowered = improvement.add(evaluation)
        run.checkpoints.best_step = improvement.best_step
        if is_lowered:
            run.trainer.use_optimizers(run.setup.optimizers(improvement.factor))
            rates = f"{improvement.factor:.3g} of what they were"
            run.say(f"step {step:,}: learning rates: {rates}")
        run.say(f"step {step:,}: {window}{split_text(record, split)}")
        for reason in undefined(record, split):
            if reason not in self._explained:  # once a run
                run.say(f"  {reason}")
                self._explained.add(reason)


class Saving(Callback):
    """Saves a checkpoint every ``train.checkpoint_every`` steps, after the best step,
    each time window, and the last step."""

    def __init__(self, run: Run, improvement: Improvement):
        self._run, self._improvement = run, improvement

    def next_stop(self, step: int) -> int | None:
        return next_multiple(step, self._run.options.checkpoint_every)

    def at_stop(self, step: int) -> None:
        setup, every = self._run.setup, self._run.options.checkpoint_every
        if (
            (every and step % every == 0)
            or step in (setup.steps, self._improvement.best_step)
            or self._improvement.ended
            or (setup.windows is not None and setup.windows.at(step).first == step)
        ):
            self.save()

    def save(self) -> None:
        """Saves a checkpoint of the step that is reached."""
        run, trainer = self._run, self._run.trainer
        bad_ids = total(trainer.check.bad_ids)
        state = trainer.whole_state()
        if jax.process_index() == 0:
            run.folder.publish()  # who has the checkpoint has the metrics up to it
        run.checkpoints.save(state, trainer.step, trainer.embeddings, bad_ids)

    def save_once(self) -> bool:
        """Saves a checkpoint unless there is one; returns whether it did."""
        is_new = self._run.trainer.step not in self._run.checkpoints.steps
        if is_new:
            self.save()
        return is_new
