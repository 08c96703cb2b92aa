"""Studies: runs of one config with several values, as many at a time as one likes.

A study says which trials are run and what comes of them: ``sweep.Sweep`` takes all
combinations of values, ``search.Search`` has Optuna choose. This module trains them,
each in a folder of its own, and writes ``results.csv``.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from pathlib import Path
from typing import Any, Literal, Protocol

from rich.console import Console
from rich.table import Table

from embark_jax._base.agreement import differences
from embark_jax._base.config import ConfigError
from embark_jax._base.errors import UserError
from embark_jax._base.files import replacing
from embark_jax.config import ExperimentConfig, reading
from embark_jax.launch.processes import make_host_devices
from embark_jax.metrics.pointwise import NonFiniteLogitError
from embark_jax.run import history, training
from embark_jax.run.logs import LogError, read_metrics
from embark_jax.train.outcome import NonFiniteLossError

RESULTS = "results.csv"
Kind = Literal["sweep", "search"]


class TrialError(UserError):
    """A process that trained one of several runs was killed."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run of a study.

    Attributes:
      number: its number, from 0.
      name: name of its folder.
      values: values that it sets, by dotted key.
      config: config with these values.
    """

    number: int
    name: str
    values: Mapping[str, Any]
    config: ExperimentConfig


class Study(Protocol):
    """Chooses the trials.

    Attributes:
      kind: what users call it.
      config: config with the values to choose from.
    """

    kind: Kind
    config: ExperimentConfig

    def rounds(self, jobs: int) -> Iterator[Sequence[Trial]]:
        """Yields trials that do not wait for each other's results; before more are
        asked for, ``tell`` gets those of all.

        Args:
          jobs: number of trials that are run at a time.

        Raises:
          ConfigError: if values make no valid config.
        """
        ...

    def tell(
        self, trial: Trial, record: Mapping[str, Any], folder: Path
    ) -> Mapping[str, Any]:
        """Takes account of a trial's metrics, or of "diverged"; returns what its line
        of results has beside them.

        Raises:
          ConfigError: if a metric is missing.
        """
        ...

    def summary(self, results: Sequence[Mapping[str, Any]]) -> Table:
        """Returns a table of the results for people."""
        ...


def run_trials(
    study: Study, workdir: Path, resume: bool, console: Console, jobs: int = 1
) -> list[dict[str, Any]]:
    """Trains all trials of a study, each in a folder of its own in ``workdir``.

    A run whose loss is no longer finite counts as diverged, and the others continue.

    Args:
      study: chooses the trials.
      workdir: folder of the runs, which also gets the study's config in ``sweep.yaml``
        or ``search.yaml``, and ``results.csv``, rewritten after each run.
      resume: whether to keep the finished runs there, and continue an unfinished one.
      console: console that shows the runs and, at the end, a table of them.
      jobs: number of runs at a time. Several are processes of their own on the same
        devices and cores, and each writes what it shows to a file beside its folder.

    Returns:
      For each trial, up to one that was ended early, its folder, values, and test
      metrics, or "diverged" with the error.

    Raises:
      FileExistsError: if ``workdir`` holds something and ``resume`` is false.
      ConfigError: if it holds another study, a folder in it holds a run of another
        config, or as the study raises it.
      DataError, CheckpointError: as in ``training.train``.
      TrialError: if the process of a run was killed.
    """
    _check_folder(study, workdir, resume)
    results: list[dict[str, Any]] = []
    for trials in study.rounds(jobs):
        for trial in trials:
            _check_same(trial.config, workdir / trial.name)
        configs = [study.config, *(trial.config for trial in trials)]
        make_host_devices(max(config.mesh.devices for config in configs))
        if not results:
            with replacing(workdir / f"{study.kind}.yaml") as scratch:
                reading.save(study.config, scratch)
        records = train_trials(trials, workdir, console, jobs)
        for trial, record in zip(trials, records, strict=True):
            if record is None:
                records.close()
                console.print(study.summary(results))
                return results
            result = {"folder": trial.name, **trial.values, **record}
            result |= study.tell(trial, record, workdir / trial.name)
            results.append(result)
            _write_results(results, workdir / RESULTS)
    console.print(study.summary(results))
    return results


def train_trials(
    trials: Sequence[Trial], workdir: Path, console: Console, jobs: int
) -> Generator[dict[str, Any] | None]:
    """Yields what ``train_trial`` returns for each trial, in order. Once one is
    ended early or fails, or this is closed, no others begin."""
    if jobs == 1:
        for trial in trials:
            console.rule(f"run {trial.number + 1}: {trial.name}")
            yield train_trial(trial.config, workdir / trial.name, console)
        return
    ended = threading.Event()

    def train_unless_ended(trial: Trial) -> dict[str, Any] | None:
        record = None
        try:
            if not ended.is_set():
                record = _train_apart(trial.config, workdir / trial.name)
        finally:
            if record is None:
                ended.set()
        return record

    threads = ThreadPoolExecutor(jobs)
    try:
        records = threads.map(train_unless_ended, trials)
        for trial, record in zip(trials, records, strict=True):
            if record is not None:
                console.print(f"run {trial.number + 1} ended: {trial.name}")
            yield record
    finally:
        ended.set()
        threads.shutdown()


def train_trial(
    config: ExperimentConfig, folder: Path, console: Console
) -> dict[str, Any] | None:
    """Returns the metrics of a finished run, or of one that is run to its end now;
    "diverged" with the error, if its loss is not finite; None if it was ended early."""
    with contextlib.suppress(LogError):  # a run without a log begins anew
        records = read_metrics(folder)
        finished = records and records[-1].get("final")
        if finished and (folder / history.CURRENT).exists():
            console.print("finished earlier")
            return _metrics(records[-1])
    try:
        record = training.train(config, folder, folder.exists(), console)
    except (NonFiniteLossError, NonFiniteLogitError) as error:
        console.print(f"diverged: {error}", markup=False, highlight=False)
        return {"diverged": str(error).partition("\n")[0]}
    return None if record is None else _metrics(record)


def _train_apart(config: ExperimentConfig, folder: Path) -> dict[str, Any] | None:
    """Trains in a process of its own: JAX sets up its devices once in a process.

    Raises:
      TrialError: if it is killed.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, max_tasks_per_child=1) as pool:
        try:
            return pool.submit(_train_logged, config, folder).result()
        except BrokenProcessPool:
            raise TrialError(
                f"{folder}: the process that trained it was killed, perhaps because "
                f"memory ran out; {_log_file(folder)} has what it showed. Continue "
                "with --resume, and fewer --jobs if memory is short"
            ) from None


def _train_logged(config: ExperimentConfig, folder: Path) -> dict[str, Any] | None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with _log_file(folder).open("a", encoding="utf-8") as file:
        return train_trial(config, folder, Console(file=file))


def _end_with_parent() -> None:
    """Ends this process's run, with a checkpoint, once nobody waits for it any more:
    it would be in the way of whoever resumes it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def _log_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.log")


def _metrics(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: record[key] for key in record if key not in ("step", "final")}


def _check_folder(study: Study, workdir: Path, resume: bool) -> None:
    """Raises ``FileExistsError`` if a new study finds files there, ``ConfigError`` if
    a resumed one finds another study."""
    own = workdir / f"{study.kind}.yaml"
    if not workdir.exists() or set(workdir.iterdir()) <= {own}:
        return  # no run has begun
    if not resume:
        raise FileExistsError(
            f"{workdir} is not empty: pass --resume to continue the {study.kind} in "
            "it, or another --workdir"
        )
    kinds: tuple[Kind, ...] = ("sweep", "search")
    for kind in kinds:
        path = workdir / f"{kind}.yaml"
        if not path.exists():
            continue
        if lines := _changes(path, study) if kind == study.kind else [f"a {kind}"]:
            raise ConfigError(
                "\n  ".join(
                    [f"{path}: is of another {kind}, whose results are here:", *lines]
                )
                + f"\n{study.kind} into another --workdir"
            )


def _changes(path: Path, study: Study) -> list[str]:
    """Returns in words where a study differs from the config in a file; a sweep may
    list other values.

    Raises:
      ConfigError: if the file is damaged.
    """
    try:
        configs = reading.load(path), study.config
    except ConfigError as error:
        raise ConfigError(
            f"{error}\n{path} says what the runs in this folder are of: delete it if "
            f"they are of this {study.kind}"
        ) from None
    before, now = (config.model_dump(mode="json") for config in configs)
    for values in (before, now):
        values["sweep"] = list(values["sweep"] or ())
    return differences(before, now, "in the folder")


def _check_same(config: ExperimentConfig, folder: Path) -> None:
    """Raises ``ConfigError`` if the folder holds a run of another config."""
    path = folder / history.CURRENT
    if path.exists() and reading.load(path) != config:
        raise ConfigError(
            f"{folder} holds a run of another config: take another --workdir. A search "
            "is the same only with the same --metric, --sampler and --jobs"
        )


def _write_results(results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes a line of CSV for each run, with the columns of all."""
    columns = dict.fromkeys(key for result in results for key in result)
    with (
        replacing(path) as scratch,
        scratch.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(results)
