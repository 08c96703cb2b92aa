"""Searches: runs of one config with several values, which Optuna chooses.

Optuna (https://optuna.org) keeps the trials in ``search.db``, where its own commands,
dashboard and plots read them. The same command goes on with a search; started twice, it
runs two trials at a time.
"""

from __future__ import annotations

import itertools
import json
import statistics
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock
import optuna
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.table import Table

from embark_jax._base.agreement import differences
from embark_jax._base.config import ConfigError, nearest
from embark_jax._base.files import replacing
from embark_jax._base.storage import local
from embark_jax.config import ExperimentConfig, SearchedConfig, reading
from embark_jax.data import WindowsData
from embark_jax.launch.processes import make_host_devices
from embark_jax.metrics.pointwise import NonFiniteLogitError
from embark_jax.metrics.ranking import DECIDING
from embark_jax.run import training
from embark_jax.run.dataset import source_of
from embark_jax.run.folder import RunFolder
from embark_jax.run.logs import read_metrics
from embark_jax.train.loop import NonFiniteLossError

CONFIG, TRIALS = "search.yaml", "search.db"
"""Files of a search: its own config, its trials."""
DEFAULT_TRIALS = 20
SHOWN = 20
"""Lines of the table: the best ones."""
HEARTBEAT_S, LOST_S = 30, 120
"""A trial whose process is silent for LOST_S is run again."""
FINISHED = (TrialState.COMPLETE, TrialState.FAIL)
TEST_METRICS = ("test_auc", "test_log_loss")


def search(
    path: Path,
    overrides: list[str],
    trials: int | None,
    metric: str,
    workdir: Path,
    console: Console,
) -> optuna.Study:
    """Trains the trials of a search, each in a folder of its own in ``workdir``.

    Where the config lists all values and no number of trials is given, each combination
    is tried. Else Optuna's TPE (https://arxiv.org/abs/2304.11127) prefers what did well
    before. The metric is that of the validation set's best evaluation. The test set
    decides nothing but a grid whose data have no validation set.

    Args:
      path, overrides: as in ``reading.load``; the config has ``search``.
      trials: number of trials, finished ones included; None is each combination, or 20
        where a value has a range.
      metric: metric that decides, a key of ``DECIDING``.
      workdir: folder of the search; one that holds the same search is continued.
      console: console that shows the runs and, at the end, a table of the best.

    Returns:
      The study, with the trials of all who have run it.

    Raises:
      ConfigError: if the config has nothing to search, a value makes no valid config,
        the validation set is never evaluated, or the folder holds another search.
      DataError, CheckpointError: as in ``training.train``.
    """
    if metric not in DECIDING:
        raise ConfigError(f"--metric is {metric!r}; {nearest(metric, DECIDING)}")
    config = reading.load(path, overrides)
    searched = config.search or {}
    if not searched:
        raise ConfigError(
            f"{path}: search has no values, must be such as search: "
            "{seed: [0, 1, 2], dense_optimizer.learning_rate: {low: 1e-4, high: 0.1}}"
        )
    # As texts, since a value may be a list.
    lists = {k: [*map(json.dumps, v.choose or ())] for k, v in searched.items()}
    is_grid = all(lists.values()) and trials is None
    combinations = [*itertools.product(*lists.values())] if is_grid else []
    tried = [config]
    if is_grid:  # each must be a config, before any is trained
        points = (
            dict(zip(searched, map(json.loads, texts), strict=True))
            for texts in combinations
        )
        tried = [_trial_config(path, overrides, point) for point in points]
    deciding = f"{_deciding_split(tried, is_grid)}_{metric}"
    make_host_devices(config.mesh.devices)
    study = _open(config, metric, workdir)
    for texts in combinations:  # GridSampler would give two commands the same ones
        listed = dict(zip(searched, texts, strict=True))
        study.enqueue_trial(listed, {"listed": True}, skip_if_exists=True)

    def objective(trial: optuna.Trial) -> float:
        if is_grid and "listed" not in trial.user_attrs:  # others took the last ones
            study.stop()
            raise optuna.TrialPruned
        values = {key: _suggest(trial, key, one) for key, one in searched.items()}
        name = trial.user_attrs.get("folder", f"trial-{trial.number:04d}")
        trial.set_user_attr("folder", name)
        console.rule(name)
        for key, value in values.items():
            console.print(f"  {key} = {value}", markup=False, highlight=False)
        folder = workdir / name
        trained = _trial_config(path, overrides, values)
        if lines := RunFolder(folder).changes(trained):  # of a search by another metric
            raise ConfigError("\n  ".join([f"{folder}: is of another search:", *lines]))
        record = training.train(trained, folder, folder.exists(), console)
        if record is None:  # it was asked to end: whoever goes on, goes on with it
            RetryHeartbeatStaleTrialCallback()(study, study.trials[trial.number])
            study.stop()
            raise optuna.TrialPruned
        for key in TEST_METRICS:
            trial.set_user_attr(key, record.get(key))
        return _best_evaluation(folder, deciding, metric)

    wanted = len(combinations) or trials or DEFAULT_TRIALS
    if len(study.get_trials(deepcopy=False, states=FINISHED)) < wanted:
        study.optimize(
            objective,
            catch=(NonFiniteLossError, NonFiniteLogitError),
            callbacks=[optuna.study.MaxTrialsCallback(wanted, FINISHED)],
        )
    ended = study.get_trials(states=(TrialState.COMPLETE,))
    console.print(_summary(ended, deciding, metric))
    if deciding.startswith("test"):
        console.print("the test set decided, as the data have no validation set")
    if ended:
        best = workdir / study.best_trial.user_attrs["folder"] / "config.yaml"
        console.print(f"the best config: {best}", soft_wrap=True, markup=False)
    return study


def _trial_config(
    path: Path, overrides: list[str], values: Mapping[str, Any]
) -> ExperimentConfig:
    """Reads the config of a trial, which has these values and no search."""
    own = (f"{key}={json.dumps(value)}" for key, value in values.items())
    return reading.load(path, [*overrides, "search=null", *own])


def _deciding_split(tried: Sequence[ExperimentConfig], is_grid: bool) -> str:
    """Returns the name of the set that decides, as records have it.

    Raises:
      ConfigError: if that would be the validation set, but there is none, or it is
        never evaluated.
    """
    dataset, _ = source_of(tried[0]).open(tried[0].seed)
    if isinstance(dataset, WindowsData):
        return "validation"
    if dataset.validation_batches(1) is None:
        if is_grid:
            return "test"
        raise ConfigError(
            "a search needs data with a validation set, unless all of its values are "
            "listed and --trials is left out"
        )
    if any(config.train.eval_every is None for config in tried):
        raise ConfigError(
            "train.eval_every is not set, but a search compares metrics of the "
            "validation set: set it"
        )
    return "validation"


def _summary(ended: list[FrozenTrial], deciding: str, metric: str) -> Table:
    """Returns a table of the best trials, the best one first; several seeds of the same
    values share a line, with mean ± standard deviation."""
    lines: dict[tuple[str, ...], list[FrozenTrial]] = {}
    keys = sorted({key for trial in ended for key in trial.params} - {"seed"})
    for trial in ended:
        values = (trial.params.get(key) for key in keys)
        texts = (f"{v:.4g}" if isinstance(v, float) else str(v) for v in values)
        lines.setdefault(tuple(texts), []).append(trial)
    table = Table("trial", *keys, f"best {deciding}", *TEST_METRICS)
    sign = -1 if DECIDING[metric].higher_is_better else 1
    means = {k: statistics.fmean(t.values[0] for t in ts) for k, ts in lines.items()}
    for texts in sorted(lines, key=lambda texts: sign * means[texts])[:SHOWN]:
        trials = lines[texts]
        columns = [
            [trial.values[0] for trial in trials],
            *([trial.user_attrs[key] for trial in trials] for key in TEST_METRICS),
        ]
        name = trials[0].user_attrs["folder"] + (" …" if len(trials) > 1 else "")
        table.add_row(name, *texts, *map(_mean_and_spread, columns))
    return table


def _mean_and_spread(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    spread = f" ± {statistics.stdev(known):.5f}" if len(known) > 1 else ""
    return f"{statistics.fmean(known):.5f}{spread}"


def _open(config: ExperimentConfig, metric: str, workdir: Path) -> optuna.Study:
    """Opens the study in a folder, which must be of the same config."""
    local(workdir).mkdir(parents=True, exist_ok=True)
    own = workdir / CONFIG
    if own.exists():
        before, now = (
            each.model_dump(mode="json") for each in (reading.load(own), config)
        )
        if lines := differences(before, now, "in the folder"):
            raise ConfigError(
                "\n  ".join([f"{own}: is of another search:", *lines])
                + "\nsearch into another --workdir"
            )
    elif any(workdir.iterdir()):
        raise FileExistsError(
            f"{workdir}: holds something else: take another --workdir"
        )
    with replacing(own) as scratch:
        reading.save(config, scratch)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    with filelock.FileLock(workdir / f"{TRIALS}.lock"):  # two would make its tables
        return optuna.create_study(
            storage=RDBStorage(
                f"sqlite:///{workdir / TRIALS}",
                heartbeat_interval=HEARTBEAT_S,
                grace_period=LOST_S,
                heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(),
            ),
            study_name=f"{config.name}, {metric}",
            sampler=optuna.samplers.TPESampler(seed=config.seed, constant_liar=True),
            direction="maximize" if DECIDING[metric].higher_is_better else "minimize",
            load_if_exists=True,
        )


def _suggest(trial: optuna.Trial, key: str, searched: SearchedConfig) -> Any:
    low, high = searched.low, searched.high
    if searched.choose is not None or low is None or high is None:
        choices = [json.dumps(value) for value in searched.choose or ()]
        return json.loads(trial.suggest_categorical(key, choices))
    if isinstance(low, int) and isinstance(high, int):
        return trial.suggest_int(key, low, high, log=searched.log)
    return trial.suggest_float(key, low, high, log=searched.log)


def _best_evaluation(folder: Path, key: str, metric: str) -> float:
    """Best value in the evaluations of a run, by its key in their records."""
    records = read_metrics(folder)
    values = [record[key] for record in records if record.get(key) is not None]
    if not values:
        raise ConfigError(
            f"{folder}: its evaluations have no {key}: the set must have samples, "
            "whose labels are 0 and 1, and train.eval_every be at most the number of "
            "steps"
        )
    return max(values) if DECIDING[metric].higher_is_better else min(values)
