"""The loop of a run, from its first step to the test set.

Between two *stops* (an evaluation, a checkpoint, the end of a time window, either end
of a profile, the end) the loop only applies batches and logs; at a stop all steps have
landed.
"""

from __future__ import annotations

from typing import Any

import jax
from rich.console import Console

from embark_jax.cache.row_store import StoreError
from embark_jax.checkpoint import Checkpointer
from embark_jax.config import tasks_of
from embark_jax.data import DataError
from embark_jax.launch.agreement import total
from embark_jax.launch.stopping import Stop, StoppedError
from embark_jax.report.display import (
    say,
    split_text,
    step_progress,
    step_text,
    undefined,
)
from embark_jax.run.early_stopping import Improvement
from embark_jax.run.evaluation import (
    counts,
    held_out,
    of_last_window,
    on_split,
    on_test_set,
)
from embark_jax.run.experiment import Experiment
from embark_jax.run.figures import Figures
from embark_jax.run.folder import RunFolder
from embark_jax.run.logs import MetricsLog
from embark_jax.run.profile import StepProfile
from embark_jax.train.trainer import Trainer


class Loop:
    """The steps of a run, and what follows them.

    Args:
      setup, trainer: the experiment, and the model that is trained.
      checkpoints: gets checkpoints, and knows the evaluations so far.
      folder: folder of the run.
      log, console: get figures and evaluations.
      stop: says when the run is asked to end.
      profile: traces some of the steps.
    """

    def __init__(
        self,
        setup: Experiment,
        trainer: Trainer,
        checkpoints: Checkpointer,
        folder: RunFolder,
        log: MetricsLog,
        console: Console,
        stop: Stop,
        profile: StepProfile,
    ):
        self._setup, self._trainer, self._checkpoints = setup, trainer, checkpoints
        self._folder, self._log, self._console = folder, log, console
        self._stop, self._profile = stop, profile
        options, past = setup.config.train, checkpoints.evaluations
        self._improvement = Improvement(options, past)
        if self._improvement.factor < 1:
            trainer.use_optimizers(setup.optimizers(self._improvement.factor))
        checkpoints.best_step = self._improvement.best_step
        self._told: set[str] = set()
        self._figures = Figures(tasks_of(setup.config.model), options.hot_batches)
        self._progress = step_progress(console=console)
        self._bar = self._progress.add_task(
            "train", total=setup.steps, completed=trainer.step, shown="compiling"
        )

    def run(self) -> None:
        """Trains to the last step and saves a checkpoint there.

        Raises:
          StoppedError: if the run is asked to end; there is a checkpoint of that step.
        """
        setup, trainer = self._setup, self._trainer
        windows, every = setup.windows, setup.config.train.checkpoint_every
        with self._progress, self._profile:
            # A run that was stopped in an evaluation begins with it when it is resumed.
            self._evaluate_if_due()
            while not self._improvement.ended and trainer.step < setup.steps:
                ends = {setup.steps}
                if windows is not None:
                    ends.add(windows.at(trainer.step).end)
                goal = self._next_stop(min(ends))
                self._train_to(goal)
                if windows is None:  # its record is kept by the checkpoint
                    self._evaluate_if_due()
                is_last = goal in ends or self._improvement.ended
                is_best = goal == self._improvement.best_step
                if (every and goal % every == 0) or is_last or is_best:
                    self._save()
                if windows is not None:
                    self._evaluate_if_due()
                self._figures.stop()
        if self._improvement.ended:
            say(
                self._console,
                f"{self._improvement}: training ends at step {trainer.step:,}",
            )

    def test(self) -> dict[str, Any]:
        """Tests the best step, or the last, and returns and logs the last record.

        Raises:
          StoppedError: if the run is asked to end.
        """
        setup, trainer, last = self._setup, self._trainer, self._trainer.step
        best = self._improvement.best_step
        if best not in (None, last):
            trainer.load(self._checkpoints, best)
        if setup.windows is None:
            metrics = on_test_set(setup, trainer, self._stop.during)
        else:
            metrics = of_last_window(self._checkpoints.evaluations)
        record = {
            "final": True,
            **metrics,
            "recompilations": trainer.recompilations,
            **counts("bad_ids", total(trainer.check.bad_ids)),
            **counts("missing_dense", setup.description.missing_dense),
        }
        if best is not None:
            record["best_step"] = best
        self._log.write(last, record)
        return record

    def _next_stop(self, end: int) -> int:
        """Returns the next step, up to ``end``, at which all steps must have landed."""
        step, options = self._trainer.step, self._setup.config.train
        intervals = filter(None, (options.eval_every, options.checkpoint_every))
        stops = [(step // every + 1) * every for every in intervals]
        return min([end, *stops, *(at for at in self._profile.stops if at > step)])

    def _train_to(self, goal: int) -> None:
        """Applies batches up to step ``goal``.

        Raises:
          StoppedError: if the run is asked to end before; there is a checkpoint.
        """
        trainer, options = self._trainer, self._setup.config.train
        data = self._setup.training_data
        self._profile.begin(trainer.step, trainer.state)
        try:
            for result in trainer.iterate(data, goal, self._stop.before):
                self._figures.add(result)
                if result.step % options.log_every == 0 or result.step == goal:
                    self._report()
        except (DataError, StoreError):
            # Of several processes, this one alone may know of the error.
            if jax.process_count() == 1 and trainer.step and self._save_once():
                good = f"a checkpoint holds all {trainer.step:,} good steps"
                say(self._console, good)
            raise
        self._profile.end(trainer.step, trainer.state)
        if trainer.step < goal:
            if not self._figures.empty:
                self._report()
            self._save_once()
            raise StoppedError

    def _report(self) -> None:
        trainer = self._trainer
        record = self._figures.close()
        if trainer.cached is not None:
            record |= trainer.cached.figures()
        self._log.write(trainer.step, record)
        shown = step_text(record)
        self._progress.update(self._bar, completed=trainer.step, shown=shown)
        if not self._console.is_terminal:
            say(self._console, f"step {trainer.step:,}: {shown}")

    def _save(self) -> None:
        trainer = self._trainer
        bad_ids = total(trainer.check.bad_ids)
        state = trainer.whole_state()
        if jax.process_index() == 0:
            self._folder.publish()  # who has the checkpoint has the metrics up to it
        self._checkpoints.save(state, trainer.step, trainer.embeddings, bad_ids)

    def _save_once(self) -> bool:
        """Saves a checkpoint of this step unless there is one; returns whether it
        did."""
        is_new = self._trainer.step not in self._checkpoints.steps
        if is_new:
            self._save()
        return is_new

    def _evaluate_if_due(self) -> None:
        """Evaluates, unless a resumed run has done so at this step."""
        setup, step = self._setup, self._trainer.step
        if any(record["step"] == step for record in self._checkpoints.evaluations):
            return
        if (windows := setup.windows) is not None:
            if step < setup.steps and windows.at(step).first == step:
                self._evaluate()
        elif step and (every := setup.config.train.eval_every) and step % every == 0:
            self._evaluate()

    def _evaluate(self) -> None:
        setup, trainer, step = self._setup, self._trainer, self._trainer.step
        show = self._progress.console
        try:
            split, batches = held_out(setup, step)
            record = on_split(setup, trainer, split, self._stop.during(batches))
        except StoppedError:
            self._save_once()
            raise
        window = ""
        if setup.windows is not None:
            record |= setup.windows.at(step).record
            window = f"window {record['window']}: "
        self._log.write(step, record)
        evaluation = {"step": step, **record}
        self._checkpoints.evaluations.append(evaluation)
        is_lowered = self._improvement.add(evaluation)
        self._checkpoints.best_step = self._improvement.best_step
        if is_lowered:
            factor = self._improvement.factor
            trainer.use_optimizers(setup.optimizers(factor))
            rates = f"{factor:.3g} of what they were"
            say(show, f"step {step:,}: learning rates: {rates}")
        say(show, f"step {step:,}: {window}{split_text(record, split)}")
        for reason in undefined(record, split):
            if reason not in self._told:  # once a run
                say(show, f"  {reason}")
                self._told.add(reason)
