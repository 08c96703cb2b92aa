"""Searches for good values of a config: earlier runs suggest what each run tries.

Optuna chooses the values (https://optuna.org). Its choices depend only on the seed and
on earlier trials, so that a resumed search asks for all of them again: the finished
runs answer at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from rich.console import Console
from rich.table import Table

from embark_jax._base.config import ConfigError
from embark_jax._base.files import replacing
from embark_jax.config import SearchedConfig, reading
from embark_jax.plans.metrics import DECIDING, MetricName
from embark_jax.plans.options import Sampler
from embark_jax.run.logs import read_metrics
from embark_jax.run.trials import Kind, Trial

BEST = "best.yaml"
SHOWN = 10
"""Trials that the table shows: the best ones."""


class Search:
    """Trials among the values of a config's ``search``, which Optuna chooses.

    ``best.yaml``, beside the folders of the trials, is the config of the best one.

    Args:
      path, overrides: as in ``reading.load``.
      count: number of trials.
      metric: metric of the validation set whose best evaluation counts for a trial; the
        test set decides nothing.
      sampler: "tpe" prefers values that did well before
        (https://arxiv.org/abs/2304.11127); "random" ignores earlier trials.
      console: console that shows the values of each trial.

    Attributes:
      config: config with ``search``.

    Raises:
      ConfigError: if the config has no ``search`` or no ``train.eval_every``.
    """

    kind: Kind = "search"

    def __init__(
        self,
        path: Path,
        overrides: Sequence[str],
        count: int,
        metric: MetricName,
        sampler: Sampler,
        console: Console,
    ):
        self.config = reading.load(path, overrides)
        if not self.config.search:
            raise ConfigError(
                f"{path}: search has no values, must be such as search: "
                "{dense_optimizer.learning_rate: {low: 1e-4, high: 0.1, log: true}}"
            )
        if self.config.train.eval_every is None:
            raise ConfigError(
                f"{path}: train.eval_every is not set, but a search compares metrics "
                "of the validation set: set it"
            )
        self._path, self._overrides = path, overrides
        self._count = count
        self._metric = metric
        self._study = _new_study(metric, sampler, self.config.seed)
        self._console = console

    def rounds(self, jobs: int) -> Iterator[Sequence[Trial]]:
        """Yields as many trials as run at a time: their values are chosen together."""
        for first in range(0, self._count, jobs):
            yield [self._ask() for _ in range(min(jobs, self._count - first))]

    def tell(
        self, trial: Trial, record: Mapping[str, Any], folder: Path
    ) -> Mapping[str, Any]:
        """Tells Optuna how good a trial is, and keeps the config of the best one.

        Returns:
          The metric's best value, by name.

        Raises:
          ConfigError: if the data have no validation set.
        """
        if "diverged" in record:
            self._study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            return {}
        value = _best_evaluation(folder, self._metric)
        self._study.tell(trial.number, value)
        if self._study.best_trial.number == trial.number:
            with replacing(folder.with_name(BEST)) as scratch:
                reading.save(trial.config, scratch)
        return {f"validation_{self._metric}": value}

    def summary(self, results: Sequence[Mapping[str, Any]]) -> Table:
        """Returns a table of the best trials, one a line, the best one first."""
        column = f"validation_{self._metric}"
        ranked = sorted(
            (result for result in results if column in result),
            key=lambda result: result[column],
            reverse=bool(DECIDING[self._metric].higher_is_better),  # stable, too
        )
        failed = len(results) - len(ranked)
        caption = f"{failed} of {len(results)} diverged" if failed else None
        table = Table(caption=caption)
        table.add_column("trial")
        keys = list(self.config.search or ())
        for key in keys:
            table.add_column(key, overflow="fold")  # shown whole, however narrow
        for heading in (f"validation {self._metric}", "test auc", "test log loss"):
            table.add_column(heading.replace("_", " "), justify="right")
        for result in ranked[:SHOWN]:
            shown = (result.get(name) for name in (column, "test_auc", "test_log_loss"))
            table.add_row(
                result["folder"],
                *(_text(result[key]) for key in keys),
                *("–" if value is None else f"{value:.5f}" for value in shown),
            )
        return table

    def _ask(self) -> Trial:
        """Returns the next trial.

        Raises:
          ConfigError: if its values make no valid config.
        """
        trial = self._study.ask()
        name = f"trial-{trial.number + 1:04d}"
        searched = self.config.search or {}
        values = {key: _suggest(trial, key, one) for key, one in searched.items()}
        self._console.print(f"{name}:", highlight=False)
        for key, value in values.items():
            self._console.print(f"  {key} = {value}", markup=False, highlight=False)
        config = reading.load(self._path, self._overrides, values)
        return Trial(trial.number, name, values, config)


def _new_study(metric: MetricName, sampler: Sampler, seed: int) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kinds = {
        "tpe": optuna.samplers.TPESampler,
        "random": optuna.samplers.RandomSampler,
    }
    direction = "maximize" if DECIDING[metric].higher_is_better else "minimize"
    return optuna.create_study(sampler=kinds[sampler](seed=seed), direction=direction)


def _suggest(trial: optuna.Trial, key: str, searched: SearchedConfig) -> Any:
    low, high = searched.low, searched.high
    if searched.choose is not None or low is None or high is None:
        # As text, since a choice may be a list.
        choices = [json.dumps(value) for value in searched.choose or ()]
        return json.loads(trial.suggest_categorical(key, choices))
    if isinstance(low, int) and isinstance(high, int):
        return trial.suggest_int(key, low, high, log=searched.log)
    return trial.suggest_float(key, low, high, log=searched.log)


def _best_evaluation(folder: Path, metric: MetricName) -> float:
    key = f"validation_{metric}"
    records = read_metrics(folder)
    values = [record[key] for record in records if record.get(key) is not None]
    if not values:
        raise ConfigError(
            f"{folder}: its evaluations have no {key}; a search needs data with a "
            "validation set, whose labels are 0 and 1"
        )
    return max(values) if DECIDING[metric].higher_is_better else min(values)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
