"""The loop of a run, from its first step to its last.

Between two *stops* (an evaluation, a checkpoint, the end of a time window, either end
of a profile, the end) the loop only applies batches and logs; at a stop all steps have
landed.
"""

from __future__ import annotations

import dataclasses

import jax
from rich.console import Console
from rich.progress import Progress, TaskID

from embark_jax.cache.row_store import StoreError
from embark_jax.checkpoint import Checkpointer
from embark_jax.config import tasks_of
from embark_jax.data import DataError
from embark_jax.launch.agreement import total
from embark_jax.launch.stopping import Stop, StoppedError
from embark_jax.report.display import say, split_text, step_progress, step_text
from embark_jax.run.early_stopping import EarlyStopping, Plateau
from embark_jax.run.evaluation import held_out, on_split
from embark_jax.run.experiment import Experiment
from embark_jax.run.folder import RunFolder
from embark_jax.run.logs import MetricsLog
from embark_jax.run.profile import StepProfile
from embark_jax.run.window import Window
from embark_jax.train.optimizers import build_optimizers
from embark_jax.train.trainer import Trainer


@dataclasses.dataclass
class Loop:
    """The steps of a run, with what they need and what follows them.

    Attributes:
      setup, trainer: the experiment, and the model that is trained.
      checkpoints: gets checkpoints.
      folder: folder of the run.
      log, console: get figures and evaluations.
      stop: says when the run is asked to end.
      early, plateau: follow the evaluations.
      profile: traces some of the steps.
    """

    setup: Experiment
    trainer: Trainer
    checkpoints: Checkpointer
    folder: RunFolder
    log: MetricsLog
    console: Console
    stop: Stop
    early: EarlyStopping
    plateau: Plateau
    profile: StepProfile

    def run(self) -> None:
        """Trains to the last step and saves a checkpoint there; or raises
        ``StoppedError`` and saves one where it stopped."""
        setup, trainer = self.setup, self.trainer
        options = setup.config.train
        self._figures = Window(tasks_of(setup.config.model), options.hot_batches)
        with step_progress(console=self.console) as progress:
            self._progress: Progress = progress
            self._task: TaskID = progress.add_task(
                "train", total=setup.steps, completed=trainer.step, shown="compiling"
            )
            # A run that was stopped in an evaluation begins with it when it is resumed.
            evaluated = {record["step"] for record in self.checkpoints.evaluations}
            if self._evaluates_at(trainer.step) and trainer.step not in evaluated:
                self._evaluate()
            while not self.early.ended:
                if trainer.step >= setup.steps and not self._next_window_comes():
                    break
                goal = self._next_stop()
                self.profile.begin(trainer.step, trainer.state)
                self._train_to(goal)
                self.profile.end(trainer.step, trainer.state)
                if trainer.step < goal:
                    if not self._figures.empty:
                        self._report()
                    self._save_once()
                    raise StoppedError
                if self._evaluates_at(goal):
                    self._evaluate()
                due = options.checkpoint_every and goal % options.checkpoint_every == 0
                ends = self.early.ended or goal == setup.steps
                if due or ends or goal == self.early.best_step:
                    self._save()
                self._figures.stop()

    def lower_rates(self) -> None:
        """Takes the learning rates that ``plateau`` says."""
        setup, factor = self.setup, self.plateau.factor
        optimizers = build_optimizers(setup.config, setup.steps, factor)
        self.trainer.use_optimizers(optimizers)

    def _train_to(self, goal: int) -> None:
        """Applies batches up to step ``goal``, or until the run is asked to end."""
        trainer, data = self.trainer, self.setup.training_data
        every = self.setup.config.train.log_every
        try:
            for result in trainer.iterate(data, goal, self.stop.before):
                self._figures.add(result)
                if result.step % every == 0 or result.step == goal:
                    self._report()
        except (DataError, StoreError):
            # Of several processes, this one alone may know of the error.
            if jax.process_count() == 1 and trainer.step and self._save_once():
                good = f"a checkpoint holds all {trainer.step:,} good steps"
                say(self.console, good)
            raise

    def _next_window_comes(self) -> bool:
        """Waits for the next time window, if data have windows, and evaluates on it."""
        windows = self.setup.windows
        if windows is None or self.trainer.step < windows.end:
            return False
        if not windows.wait(self.stop):
            return False
        self._evaluate()
        self._progress.update(self._task, total=self.setup.steps)
        return True

    def _report(self) -> None:
        trainer = self.trainer
        record = self._figures.close()
        if trainer.cached is not None:
            record |= trainer.cached.figures()
        self.log.write(trainer.step, record)
        shown = step_text(record)
        self._progress.update(self._task, completed=trainer.step, shown=shown)
        if not self.console.is_terminal:
            say(self.console, f"step {trainer.step:,}: {shown}")

    def _save(self) -> None:
        trainer = self.trainer
        bad_ids = total(trainer.check.bad_ids)
        state = trainer.whole_state()
        if jax.process_index() == 0:
            self.folder.publish()  # who has the checkpoint has the metrics up to it
        self.checkpoints.save(state, trainer.step, trainer.embeddings, bad_ids)

    def _save_once(self) -> bool:
        """Saves a checkpoint of this step unless there is one; returns whether it
        did."""
        is_new = self.trainer.step not in self.checkpoints.steps
        if is_new:
            self._save()
        return is_new

    def _evaluate(self) -> None:
        setup, trainer = self.setup, self.trainer
        step = trainer.step
        try:
            split, batches = held_out(setup, step)
            record = on_split(setup, trainer, split, self.stop.during(batches))
        except StoppedError:
            self._save_once()
            raise
        window = ""
        if setup.windows is not None:
            record |= setup.windows.at(step).record
            window = f"window {record['window']}: "
            if jax.process_index() == 0:
                setup.windows.save_encoding(step, self.folder.files)
        self.log.write(step, record)
        self.checkpoints.evaluations.append({"step": step, **record})
        self.early.add(step, record)
        show = self._progress.console
        if self.plateau.add(step, record):
            self.lower_rates()
            rates = f"{self.plateau.factor:.3g} of what they were"
            say(show, f"step {step:,}: learning rates: {rates}")
        self.checkpoints.best_step = self.early.best_step
        say(show, f"step {step:,}: {window}{split_text(record, split)}")

    def _evaluates_at(self, step: int) -> bool:
        if (windows := self.setup.windows) is not None:
            return step < windows.end and windows.at(step).first == step
        every = self.setup.config.train.eval_every
        return bool(step and every and step % every == 0)

    def _next_stop(self) -> int:
        """Returns the next step at which all steps must have landed."""
        setup, step = self.setup, self.trainer.step
        options = setup.config.train
        intervals = filter(None, (options.eval_every, options.checkpoint_every))
        stops = [setup.steps, *(other for other in self.profile.stops if other > step)]
        if setup.windows is not None:
            stops.append(setup.windows.at(step).end)
        return min([*stops, *((step // every + 1) * every for every in intervals)])
