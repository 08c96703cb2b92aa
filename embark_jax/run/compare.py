"""Reads runs, or those of a search, to compare them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from embark_jax._base.config import ConfigError, nearest
from embark_jax._base.object_store import file_system_or_bucket
from embark_jax.metrics.ranking import METRICS
from embark_jax.plans.plan import Plan
from embark_jax.report.comparison import ComparedRun
from embark_jax.run.folder import CONFIG, PLAN, RunFolder, config_of
from embark_jax.run.logs import FILE_NAME as METRICS_FILE
from embark_jax.run.logs import read_metrics
from embark_jax.run.own_metrics import own_metrics

SEARCH = "search.yaml"
"""The config of a search, in its folder."""


def read_runs(paths: Iterable[str | Path]) -> list[ComparedRun]:
    """Reads runs that have begun to train, for ``report.comparison``.

    Args:
      paths: folders of runs, which may be in a bucket, and of searches, which stand for
        those of their trials that have metrics.

    Raises:
      ConfigError: if a folder is neither, or there is none.
      LogError: if the metrics of a run are damaged, or not there yet.
    """
    folders: list[Path] = []
    for path in map(file_system_or_bucket, paths):
        is_search = (path / SEARCH).exists()
        trials = (
            (each.parent for each in path.glob(f"*/{METRICS_FILE}"))
            if is_search
            else ()
        )
        folders += sorted(trials) if is_search else [path]
    if not folders:
        raise ConfigError("there are no runs to compare: name folders of some")
    if twice := [each for each in folders if folders.count(each) > 1]:
        raise ConfigError(f"{twice[0]}: is named twice, must be another run")
    names = [folder.name for folder in folders]
    are_unique = len({*names}) == len(names)
    return [read_run(each, each.name if are_unique else str(each)) for each in folders]


def read_run(path: Path, name: str) -> ComparedRun:
    """Reads a run, which is shown by this name; see ``read_runs``."""
    folder = RunFolder(path).read()
    if not (folder / CONFIG).exists():
        raise ConfigError(f"{path}: holds no {CONFIG}, must be the folder of a run")
    planned = None
    with contextlib.suppress(FileNotFoundError, ValueError):  # of another version
        prediction = Plan.from_json((folder / PLAN).read_text()).prediction
        planned = prediction and max(prediction.device_bytes)
    config = config_of(folder)
    metrics = {**METRICS, **own_metrics(config.train)}
    described = config.model_dump(mode="json")
    return ComparedRun(name, described, read_metrics(folder), planned, metrics)


def deciding_key(runs: Sequence[ComparedRun], metric: str) -> str:
    """Returns the key of a metric in records: that of the validation set, or of the
    test set where no run has it.

    Raises:
      ConfigError: if no run has either.
    """
    for split in ("validation", "test"):
        key = f"{split}_{metric}"
        if any(run.best(key) is not None for run in runs):
            return key
    found = {key for run in runs for record in run.records for key in record}
    known = {k.partition("_")[2] for k in found if runs[0].metric(k) is not None}
    raise ConfigError(f"--metric is {metric!r}; {nearest(metric, known)}")
