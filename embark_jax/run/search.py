"""Searches: runs of one config with several values of some keys.

Where all values are listed, each combination is tried. Otherwise Optuna chooses, see
``sampled_search``. A trial is a run in a folder of its own, which whoever trains it has
locked: the same command goes on with a search, also with a trial whose process was
killed, and started twice, it runs two trials at a time.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock
from rich.console import Console

from embark_jax._base.agreement import differences
from embark_jax._base.config import ConfigError, nearest
from embark_jax._base.files import replacing
from embark_jax._base.object_store import local
from embark_jax.config import ExperimentConfig, reading
from embark_jax.data import WindowsData
from embark_jax.launch.processes import make_host_devices
from embark_jax.metrics.pointwise import NonFiniteLogitError
from embark_jax.report.comparison import comparison_page, comparison_table, ordered
from embark_jax.run import training
from embark_jax.run.compare import SEARCH, read_run
from embark_jax.run.dataset import source_of
from embark_jax.run.folder import CONFIG, RunFolder
from embark_jax.run.logs import FILE_NAME as METRICS
from embark_jax.run.own_metrics import deciding_metrics
from embark_jax.train.results import NonFiniteLossError

FAILED = "failed.txt"
"""A file in the folder of a trial that diverged, with its error: it is not tried
again."""
PAGE = "report.html"
SHOWN = 20
"""Lines of the table: the best ones."""
DIVERGED = NonFiniteLossError, NonFiniteLogitError


class Trials:
    """Trains the trials of a search, each in a folder of its own in ``workdir``.

    Args:
      path, overrides: as in ``reading.load``; the config has ``search``.
      metric: metric that decides, as for ``early_stopping``.
      workdir: folder of the search; one that holds the same search is continued.
      console: console that shows the runs.

    Attributes:
      config: the config.
      searched: values by dotted key.
      metric, higher_is_better: what decides.
      deciding: its key in records, such as "validation_auc".

    Raises:
      ConfigError: if the config has nothing to search, or the folder holds another
        search.
      FileExistsError: if the folder holds something else.
    """

    def __init__(
        self,
        path: Path,
        overrides: list[str],
        metric: str,
        workdir: Path,
        console: Console,
    ):
        self._path, self._overrides = path, overrides
        self.workdir, self._console = workdir, console
        self.config = reading.load(path, overrides)
        known = deciding_metrics(self.config.train)
        if metric not in known:
            raise ConfigError(f"--metric is {metric!r}; {nearest(metric, known)}")
        self.metric, self.higher_is_better = metric, known[metric].higher_is_better
        self.searched = self.config.search or {}
        self.deciding = f"validation_{metric}"
        if not self.searched:
            raise ConfigError(
                f"{path}: search has no values, must be such as search: "
                "{seed: [0, 1, 2], dense_optimizer.learning_rate: {low: 1e-4, high: 1}}"
            )

    def config_of(self, values: Mapping[str, Any]) -> ExperimentConfig:
        """Reads the config of a trial, which has these values and no search."""
        own = (f"{key}={json.dumps(value)}" for key, value in values.items())
        return reading.load(self._path, [*self._overrides, "search=null", *own])

    def check(self, tried: Sequence[ExperimentConfig], is_grid: bool) -> None:
        """Finds out which set decides: the test set if all values are listed and the
        data have no other.

        Raises:
          ConfigError: if it would be the validation set, but there is none, or it is
            never evaluated.
        """
        dataset, _ = source_of(tried[0]).open(tried[0].seed)
        if isinstance(dataset, WindowsData):
            return
        if dataset.validation_batches(1) is None:
            if not is_grid:
                raise ConfigError(
                    "a search needs data with a validation set, unless all of its "
                    "values are listed and --trials is left out"
                )
            self.deciding = self.deciding.replace("validation", "test")
        elif any(config.train.eval_every is None for config in tried):
            raise ConfigError(
                "train.eval_every is not set, but a search compares metrics of the "
                "validation set: set it, such as train.eval_every=100"
            )

    def open(self) -> None:
        """Makes the folder, or finds the same search in it."""
        local(self.workdir).mkdir(parents=True, exist_ok=True)
        own = self.workdir / SEARCH
        others = (p for p in self.workdir.iterdir() if not p.name.startswith(SEARCH))
        if not own.exists() and any(others):
            raise FileExistsError(
                f"{self.workdir}: holds something else: take another --workdir"
            )
        try:  # another search may begin here at the same time
            with replacing(own, exist_ok=False) as scratch:
                reading.save(self.config, scratch)
        except FileExistsError:
            before, now = (
                each.model_dump(mode="json")
                for each in (reading.load(own), self.config)
            )
            if lines := differences(before, now, "in the folder"):
                lines = [f"{own}: is of another search:", *lines]
                raise ConfigError(
                    "\n  ".join(lines) + "\nsearch into another --workdir"
                ) from None
        make_host_devices(self.config.mesh.devices)

    def claim(self, name: str) -> filelock.AcquireReturnProxy | None:
        """Locks the folder of a trial, to release it at the end of a context; None if
        another process trains there."""
        lock = filelock.FileLock(self.workdir / f".{name}.lock", blocking=False)
        try:
            return lock.acquire()
        except filelock.Timeout:
            return None

    def has_ended(self, name: str) -> bool:
        """Whether a trial was trained to its end, or has diverged."""
        folder = self.workdir / name
        if (folder / FAILED).exists():
            return True
        return (folder / METRICS).exists() and bool(read_run(folder, name).final)

    def train(self, name: str, values: Mapping[str, Any]) -> bool:
        """Trains a trial in its folder, which is claimed, or goes on there; returns
        False if it was asked to end.

        Raises:
          NonFiniteLossError, NonFiniteLogitError: if it diverges.
          ConfigError, DataError, CheckpointError: as ``training.train``.
        """
        self._console.rule(name)
        for key, value in values.items():
            self._console.print(f"  {key} = {value}", markup=False, highlight=False)
        folder = self.workdir / name
        config = self.config_of(values)
        if lines := RunFolder(folder).changes(config):  # of a search by another metric
            raise ConfigError("\n  ".join([f"{folder}: is of another search:", *lines]))
        try:
            record = training.train(config, folder, folder.exists(), self._console)
        except DIVERGED as error:
            (folder / FAILED).write_text(f"{error}\n")
            self._console.print(f"{name} diverged: {error}", markup=False)
            raise
        return record is not None

    def best(self, name: str) -> float:
        """Returns the best value of the metric in the evaluations of a trial."""
        run = read_run(self.workdir / name, name)
        value = run.best(self.deciding)
        if value is None:
            known = sorted({key for record in run.records for key in record})
            known = [key for key in known if run.best(key) is not None]
            raise ConfigError(
                f"{self.workdir / name}: its evaluations have no {self.deciding}, but "
                f"{', '.join(known) or 'nothing'}: choose another --metric; or the set "
                "must have samples, whose labels are 0 and 1, and train.eval_every be "
                "at most the number of steps"
            )
        return value

    def show(self) -> None:
        """Shows a table of the best trials that have ended, and writes the page that
        compares all."""
        names = sorted(path.parent.name for path in self.workdir.glob(f"*/{CONFIG}"))
        ended = [n for n in names if self.has_ended(n)]
        ended = [n for n in ended if not (self.workdir / n / FAILED).exists()]
        runs = [read_run(self.workdir / name, name) for name in ended]
        if not runs:
            return
        self._console.print(comparison_table(runs, self.deciding, most=SHOWN))
        if self.deciding.startswith("test"):
            self._console.print(
                "the test set decided, as the data have no validation set"
            )
        page = self.workdir / PAGE
        page.write_text(comparison_page(runs, self.deciding), "utf-8")
        ((best, *_), *_) = ordered([[run] for run in runs], self.deciding)
        for what, where in (
            ("values and curves", page),
            ("the best config", self.workdir / best.name / CONFIG),
        ):
            self._console.print(f"{what}: {where}", soft_wrap=True, markup=False)


def search(
    path: Path,
    overrides: list[str],
    trials: int | None,
    metric: str,
    workdir: Path,
    console: Console,
) -> None:
    """Trains the trials of a search, and shows the best.

    Where the config lists all values and no number of trials is given, each combination
    is tried. Else Optuna's TPE (https://arxiv.org/abs/2304.11127) prefers what did well
    before. The metric is that of the validation set's best evaluation. The test set
    decides nothing but a grid whose data have no validation set.

    Args:
      path, overrides, metric, workdir, console: as for ``Trials``.
      trials: number of trials, those that have begun included; None is each
        combination, or 20 where a value has a range.

    Raises:
      ConfigError: as ``Trials``; also if a value makes no valid config, the validation
        set is never evaluated, or Optuna is needed and not installed.
      DataError, CheckpointError: as in ``training.train``.
    """
    searched_trials = Trials(path, overrides, metric, workdir, console)
    lists = {key: each.choose for key, each in searched_trials.searched.items()}
    if trials is not None or None in lists.values():
        from embark_jax.run import sampled_search

        sampled_search.search(searched_trials, trials)
    else:
        choices = [each for each in lists.values() if each is not None]
        _search_all(
            searched_trials,
            [
                dict(zip(lists, each, strict=True))
                for each in itertools.product(*choices)
            ],
        )
    searched_trials.show()


def _search_all(trials: Trials, points: Sequence[Mapping[str, Any]]) -> None:
    """Trains each of these values, but what others train at the moment."""
    # Each must be a config, before any is trained.
    trials.check([trials.config_of(point) for point in points], is_grid=True)
    trials.open()
    for number, point in enumerate(points):
        name = f"trial-{number:04d}"
        if (lock := trials.claim(name)) is None:
            continue
        with lock:
            if trials.has_ended(name):
                continue
            try:
                if not trials.train(name, point):
                    return
                if number == 0:
                    trials.best(name)  # which it must have, before all are trained
            except DIVERGED:
                continue
