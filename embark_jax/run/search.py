"""Searches for good values of a config: earlier runs suggest what each run tries.

Optuna chooses the values (https://optuna.org). Its choices depend only on the seed and
on earlier trials, so that a resumed search asks for all of them again: the finished
runs answer at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import optuna
from rich.console import Console
from rich.table import Table

from embark_jax._base.config import ConfigError
from embark_jax.config import ExperimentConfig, SearchedConfig, reading
from embark_jax.run import experiment
from embark_jax.run.logs import read_metrics
from embark_jax.run.sweep import (
    RESULTS,
    check_same,
    check_unused,
    train_points,
    write_results,
)

BEST = "best.yaml"
SHOWN = 10
"""Trials that the table shows: the best ones."""
Metric = Literal["auc", "log_loss"]
Sampler = Literal["tpe", "random"]


def run_search(
    path: Path,
    overrides: Sequence[str],
    workdir: Path,
    trials: int,
    metric: Metric,
    sampler: Sampler,
    resume: bool,
    console: Console,
    jobs: int = 1,
) -> list[dict[str, Any]]:
    """Trains all trials, each in a folder of its own in ``workdir``.

    A run whose loss is no longer finite counts as failed, and the search continues.

    Args:
      path, overrides: as in ``reading.load``; the config's ``search`` lists the
        values.
      workdir: folder of the trials, which also gets ``results.csv``, rewritten after
        each trial, and ``best.yaml``, the config of the best one.
      trials: number of trials.
      metric: metric of the validation set whose best evaluation counts for a trial; the
        test set decides nothing.
      sampler: "tpe" prefers values that did well before
        (https://arxiv.org/abs/2304.11127); "random" ignores earlier trials.
      resume: whether to keep the finished trials there, and continue an unfinished one.
      console: console that shows the runs and, at the end, a table of the best ones.
      jobs: number of trials at a time, whose values are chosen together; see
        ``sweep.train_points``.

    Returns:
      For each trial, up to one that was ended early, its folder, values and metrics, or
      "diverged" with the error.

    Raises:
      FileExistsError: if ``workdir`` is not empty and ``resume`` is false.
      ConfigError: if the config has no ``search`` or no ``train.eval_every``, values
        make no valid config, the data have no validation set, or a folder holds a
        trial of another search.
      DataError, CheckpointError: as in ``training.train``.
    """
    config = reading.load(path, overrides)
    _check(path, config)
    check_unused(workdir, resume, "search")
    workdir.mkdir(parents=True, exist_ok=True)
    experiment.make_host_devices(config)
    study = _new_study(metric, sampler, config.seed)
    results: list[dict[str, Any]] = []
    for first in range(0, trials, jobs):
        asked = [
            _ask(study, path, overrides, workdir / f"trial-{number + 1:04d}", console)
            for number in range(first, min(first + jobs, trials))
        ]
        named = [(each.config, each.folder) for each in asked]
        records = list(train_points(named, jobs, console, first + 1))
        for each, record in zip(asked, records, strict=True):
            if record is None:
                break
            results.append({"folder": each.folder.name, **each.values, **record})
            if "diverged" in record:
                study.tell(each.trial, state=optuna.trial.TrialState.FAIL)
            else:
                best = _best_evaluation(each.folder, metric)
                study.tell(each.trial, best)
                results[-1][f"validation_{metric}"] = best
                if study.best_trial.number == each.trial.number:
                    reading.save(each.config, workdir / BEST)
            write_results(results, workdir / RESULTS)
        if None in records:
            break
    console.print(_summary(results, list(config.search or ()), metric))
    return results


class _Asked(NamedTuple):
    """A trial with its values, its config and its folder."""

    trial: optuna.Trial
    values: Mapping[str, Any]
    config: ExperimentConfig
    folder: Path


def _ask(
    study: optuna.Study,
    path: Path,
    overrides: Sequence[str],
    folder: Path,
    console: Console,
) -> _Asked:
    """Chooses the values of the next trial.

    Raises:
      ConfigError: if they make no valid config, or the folder holds another trial.
    """
    searched = reading.load(path, overrides).search or {}
    trial = study.ask()
    values = {key: _suggest(trial, key, each) for key, each in searched.items()}
    console.print(f"{folder.name}:", highlight=False)
    for key, value in values.items():
        console.print(f"  {key} = {value}", markup=False, highlight=False)
    point = reading.load(path, overrides, values)
    check_same(point, folder)
    return _Asked(trial, values, point, folder)


def _check(path: Path, config: ExperimentConfig) -> None:
    if not config.search:
        raise ConfigError(
            f"{path}: search has no values, must be such as "
            "search: {dense_optimizer.learning_rate: {low: 1e-4, high: 0.1, log: true}}"
        )
    if config.train.eval_every is None:
        raise ConfigError(
            f"{path}: train.eval_every is not set, but a search compares metrics of "
            "the validation set: set it"
        )


def _new_study(metric: Metric, sampler: Sampler, seed: int) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kinds = {
        "tpe": optuna.samplers.TPESampler,
        "random": optuna.samplers.RandomSampler,
    }
    direction = "minimize" if metric == "log_loss" else "maximize"
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


def _best_evaluation(folder: Path, metric: Metric) -> float:
    key = f"validation_{metric}"
    values = [each[key] for each in read_metrics(folder) if each.get(key) is not None]
    if not values:
        raise ConfigError(
            f"{folder}: its evaluations have no {key}; a search needs data with a "
            "validation set, whose labels are 0 and 1"
        )
    return min(values) if metric == "log_loss" else max(values)


def _summary(
    results: Sequence[Mapping[str, Any]], keys: Sequence[str], metric: Metric
) -> Table:
    """Returns a table of the best trials, one a line, the best one first."""
    column = f"validation_{metric}"
    sign = 1 if metric == "log_loss" else -1
    ranked = sorted(
        (result for result in results if column in result),
        key=lambda result: sign * result[column],
    )
    failed = len(results) - len(ranked)
    table = Table(caption=f"{failed} of {len(results)} diverged" if failed else None)
    table.add_column("trial")
    for key in keys:
        table.add_column(key, overflow="fold")  # shown whole, however narrow
    for heading in (f"validation {metric}", "test auc", "test log loss"):
        table.add_column(heading.replace("_", " "), justify="right")
    for result in ranked[:SHOWN]:
        shown = (result.get(name) for name in (column, "test_auc", "test_log_loss"))
        table.add_row(
            result["folder"],
            *(_text(result[key]) for key in keys),
            *("–" if value is None else f"{value:.5f}" for value in shown),
        )
    return table


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
