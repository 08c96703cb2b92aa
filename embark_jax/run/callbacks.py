"""What a run does besides training steps, each as a callback of its loop.

The loop trains from one *stop* to the next: the nearest that any callback asks for. At
a stop all steps have landed.
"""

from __future__ import annotations

import jax
from rich.console import Console

from embark_jax.checkpoint import Checkpointer
from embark_jax.config import tasks_of
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


class Callback:
    """A callback, which does nothing at any time; subclasses do something at some."""

    def next_stop(self, step: int) -> int | None:
        """Returns the next step after this one at which all steps must have landed."""
        return None

    def begin(self, step: int) -> None:
        """Called before steps after this one are trained."""

    def add(self, result: StepResult) -> None:
        """Called with each step, in order, once it is certain."""

    def at_stop(self, step: int) -> None:
        """Called when all steps up to this one have landed."""


def next_multiple(step: int, every: int | None) -> int | None:
    """Returns the next multiple of ``every`` after a step."""
    return (step // every + 1) * every if every else None


class StepLog(Callback):
    """Logs and shows figures of the steps, every ``train.log_every`` of them.

    Args:
      setup, trainer: the experiment, and the model that is trained.
      log, console: get the figures.

    Attributes:
      progress: the bar of steps, to be entered.
    """

    def __init__(
        self, setup: Experiment, trainer: Trainer, log: MetricsLog, console: Console
    ):
        options = setup.config.train
        self._trainer, self._log, self._console = trainer, log, console
        self._every = options.log_every
        self._figures = Figures(tasks_of(setup.config.model), options.hot_batches)
        self.progress = step_progress(console=console)
        self._bar = self.progress.add_task(
            "train", total=setup.steps, completed=trainer.step, shown="compiling"
        )

    def add(self, result: StepResult) -> None:
        self._figures.add(result)
        if result.step % self._every == 0:
            self._report()

    def at_stop(self, step: int) -> None:
        if not self._figures.empty:
            self._report()

    def begin(self, step: int) -> None:
        self._figures.stop()

    def _report(self) -> None:
        step, record = self._trainer.step, self._figures.close()
        if self._trainer.cached is not None:
            record |= self._trainer.cached.figures()
        self._log.write(step, record)
        shown = step_text(record)
        self.progress.update(self._bar, completed=step, shown=shown)
        if not self._console.is_terminal:
            say(self._console, f"step {step:,}: {shown}")


class Evaluation(Callback):
    """Evaluates every ``train.eval_every`` steps, or before each time window, and does
    what early stopping and a plateau ask for.

    Args:
      setup, trainer: the experiment, and the model that is trained.
      checkpoints: keeps the evaluations, and the checkpoint of the best one.
      log, console: get the metrics.
      stop: says when the run is asked to end.

    Attributes:
      improvement: whether the validation set still improves.
    """

    def __init__(
        self,
        setup: Experiment,
        trainer: Trainer,
        checkpoints: Checkpointer,
        log: MetricsLog,
        console: Console,
        stop: Stop,
    ):
        self._setup, self._trainer, self._checkpoints = setup, trainer, checkpoints
        self._log, self._console, self._stop = log, console, stop
        self._every = setup.config.train.eval_every
        self.improvement = Improvement(setup.config.train, checkpoints.evaluations)
        if self.improvement.factor < 1:
            trainer.use_optimizers(setup.optimizers(self.improvement.factor))
        checkpoints.best_step = self.improvement.best_step
        self._explained: set[str] = set()

    def next_stop(self, step: int) -> int | None:
        windows = self._setup.windows
        if windows is not None:
            return windows.at(step).end
        return next_multiple(step, self._every)

    def at_stop(self, step: int) -> None:
        """Evaluates if it is time, unless a run that was resumed has done so.

        Raises:
          StoppedError: if the run is asked to end meanwhile.
        """
        windows, past = self._setup.windows, self._checkpoints.evaluations
        if any(record["step"] == step for record in past):
            return
        if windows is not None:
            is_due = step < self._setup.steps and windows.at(step).first == step
        else:
            is_due = bool(step and self._every and step % self._every == 0)
        if is_due:
            self._evaluate(step)

    def _evaluate(self, step: int) -> None:
        setup, trainer, checkpoints = self._setup, self._trainer, self._checkpoints
        split, batches = held_out(setup, step)
        record = on_split(setup, trainer, split, self._stop.during(batches))
        window = ""
        if setup.windows is not None:
            record |= setup.windows.at(step).record
            window = f"window {record['window']}: "
        self._log.write(step, record)
        evaluation = {"step": step, **record}
        checkpoints.evaluations.append(evaluation)
        is_lowered = self.improvement.add(evaluation)
        checkpoints.best_step = self.improvement.best_step
        if is_lowered:
            factor = self.improvement.factor
            trainer.use_optimizers(setup.optimizers(factor))
            rates = f"{factor:.3g} of what they were"
            say(self._console, f"step {step:,}: learning rates: {rates}")
        say(self._console, f"step {step:,}: {window}{split_text(record, split)}")
        for reason in undefined(record, split):
            if reason not in self._explained:  # once a run
                say(self._console, f"  {reason}")
                self._explained.add(reason)


class Saving(Callback):
    """Saves a checkpoint every ``train.checkpoint_every`` steps, after the best step,
    each time window, and the last step.

    Args:
      setup, trainer: the experiment, and the model that is trained.
      checkpoints: writes them.
      folder: folder of the run, which is published before each of them.
      improvement: knows the best step, and whether training ends.
    """

    def __init__(
        self,
        setup: Experiment,
        trainer: Trainer,
        checkpoints: Checkpointer,
        folder: RunFolder,
        improvement: Improvement,
    ):
        self._setup, self._trainer, self._checkpoints = setup, trainer, checkpoints
        self._folder, self._improvement = folder, improvement
        self._every = setup.config.train.checkpoint_every

    def next_stop(self, step: int) -> int | None:
        return next_multiple(step, self._every)

    def at_stop(self, step: int) -> None:
        windows = self._setup.windows
        if (
            (self._every and step % self._every == 0)
            or step in (self._setup.steps, self._improvement.best_step)
            or self._improvement.ended
            or (windows is not None and windows.at(step).first == step)
        ):
            self.save()

    def save(self) -> None:
        """Saves a checkpoint of the step that is reached."""
        trainer = self._trainer
        bad_ids = total(trainer.check.bad_ids)
        state = trainer.whole_state()
        if jax.process_index() == 0:
            self._folder.publish()  # who has the checkpoint has the metrics up to it
        self._checkpoints.save(state, trainer.step, trainer.embeddings, bad_ids)

    def save_once(self) -> bool:
        """Saves a checkpoint unless there is one; returns whether it did."""
        is_new = self._trainer.step not in self._checkpoints.steps
        if is_new:
            self.save()
        return is_new
